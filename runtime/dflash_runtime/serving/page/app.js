// One prompt, answered with the drafter and then without: every block that the target verified, as it comes.

const byId = (id) => document.getElementById(id);
const form = byId("form"), told = byId("told"), fault = byId("fault");
let running = null; // an AbortController while an answer is being written

class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function watch() {
  const state = byId("state");
  try {
    const { status } = await (await fetch("ready")).json();
    state.textContent = status;
    state.className = `state ${status}`;
    if (status === "ready" && !byId("model").dataset.known) await servedModel().catch(tellKeyIsNeeded);
  } catch {
    state.textContent = "unreachable";
    state.className = "state";
  }
  setTimeout(watch, document.hidden ? 30000 : 5000);
}

async function servedModel() {
  const { data } = await checked(await fetch("v1/models", { headers: headers() }));
  byId("model").textContent = data[0].id;
  byId("model").dataset.known = "yes";
  if (data[0].max_model_len) byId("max-tokens").max = data[0].max_model_len;
  return data[0].id;
}

function tellKeyIsNeeded(error) {
  byId("model").textContent = error.status === 401 ? "needs an API key (Options)" : "…";
}

function headers() {
  const key = byId("api-key").value;
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

async function checked(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refusal(body.error?.message ?? `the server answered ${response.status}`, response.status);
  return body;
}

function question(model) {
  const prompt = byId("prompt").value;
  const common = {
    model,
    max_tokens: byId("max-tokens").valueAsNumber,
    temperature: byId("temperature").valueAsNumber,
    seed: byId("seed").valueAsNumber,
    stream: true,
    stream_options: { include_acceptance: true },
  };
  return byId("form-of-prompt").value === "chat"
    ? { path: "v1/chat/completions", body: { ...common, messages: [{ role: "user", content: prompt }] } }
    : { path: "v1/completions", body: { ...common, prompt } };
}

async function* events({ path, body }, signal) {
  const response = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!response.ok) await checked(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    const lines = (held + (value ?? "")).split("\n\n");
    held = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      const event = JSON.parse(line.slice("data: ".length));
      if (event.error) throw new Refusal(event.error.message);
      yield event;
    }
    if (done) throw new Refusal("the server ended the answer in its midst");
  }
}

class Tally {
  constructor(began) {
    Object.assign(this, { began, text: "", tokens: 0, passes: 0, gained: 0, drafted: 0 });
  }

  add(step, now) {
    if (!this.tokens) Object.assign(this, { first: now, firstTokens: step.tokens });
    this.last = now;
    this.tokens += step.tokens;
    this.text += step.text;
    if (step.acceptance_length === null) return; // the prompt's pass
    this.passes += 1;
    this.gained += step.acceptance_length;
    this.drafted += step.block_size - 1;
  }

  get speed() {
    return this.last > this.first ? (1000 * (this.tokens - this.firstTokens)) / (this.last - this.first) : NaN;
  }

  get facts() {
    return {
      speed: inWords(this.speed, 1),
      gain: inWords(this.gained / this.passes, 2),
      accepted: this.drafted ? `${inWords((100 * (this.gained - this.passes)) / this.drafted, 0)} %` : "–",
      first: this.first === undefined ? "–" : `${inWords((this.first - this.began) / 1000, 2)} s`,
      tokens: String(this.tokens),
    };
  }
}

const inWords = (number, digits) => (Number.isFinite(number) ? number.toFixed(digits) : "–");

function show(panel, facts) {
  for (const place of panel.querySelectorAll("[data-fact]")) place.textContent = facts[place.dataset.fact];
}

function clear(panel) {
  panel.querySelector(".answer").replaceChildren();
  for (const place of panel.querySelectorAll("[data-fact]")) place.textContent = "–";
}

function piece(kind, text) {
  const span = document.createElement("span");
  span.className = kind;
  span.textContent = text;
  return span;
}

function append(panel, step) {
  if (!step.text) return; // part of a character: its text comes with a later step
  const answer = panel.querySelector(".answer");
  const following = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 40;
  const block = piece("block new", "");
  const own = step.text.slice(step.accepted_text.length);
  if (step.accepted_text) block.append(piece("drafted", step.accepted_text));
  if (own) block.append(piece("own", own));
  block.title = `${step.accepted} drafted, ${step.tokens - step.accepted} the target's own`;
  answer.append(block);
  if (following) answer.scrollTop = answer.scrollHeight;
}

async function answer(panel, asked, signal) {
  const tally = new Tally(performance.now());
  panel.setAttribute("aria-busy", "true");
  try {
    for await (const { acceptance } of events(asked, signal)) {
      if (!acceptance) continue; // roles and ends
      tally.add(acceptance, performance.now());
      append(panel, acceptance);
      show(panel, tally.facts);
    }
  } finally {
    panel.removeAttribute("aria-busy");
  }
  return tally;
}

function summary(drafted, plain) {
  const { speed, gain } = drafted.facts;
  const first = `With the drafter: ${speed} tokens/s, ${gain} tokens a pass.`;
  if (!plain) return first;
  const ratio = inWords(drafted.speed / plain.speed, 2);
  const same = drafted.text === plain.text ? "The two answers are the same." : "The two answers differ.";
  return `${first} Without: ${plain.facts.speed} tokens/s: drafting was ${ratio} times as fast. ${same}`;
}

async function run() {
  if (running) return;
  running = new AbortController();
  setBusy(true);
  [byId("with"), byId("without")].forEach(clear);
  told.textContent = "Answering with the drafter.";
  try {
    const asked = question(await servedModel());
    const drafted = await answer(byId("with"), asked, running.signal);
    let plain = null;
    if (byId("compare").checked) {
      told.textContent = "Answering without the drafter.";
      const plainly = { ...asked, body: { ...asked.body, block_size: 1 } };
      plain = await answer(byId("without"), plainly, running.signal);
    }
    told.textContent = summary(drafted, plain);
  } catch (error) {
    end(error);
  } finally {
    running = null;
    setBusy(false);
  }
}

function end(error) {
  if (error.name === "AbortError") {
    told.textContent = "Stopped.";
    return;
  }
  told.textContent = "";
  fault.textContent = error.message;
  fault.hidden = false;
  if (error.status !== 401) return;
  document.querySelector("details").open = true;
  byId("api-key").focus();
}

function setBusy(busy) {
  const [from, to] = busy ? [byId("run"), byId("stop")] : [byId("stop"), byId("run")];
  to.disabled = false;
  if (document.activeElement === from) to.focus(); // a disabled button loses the focus
  from.disabled = true;
  if (busy) fault.hidden = true;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
byId("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  if (event.key === "Escape") running?.abort();
});
watch();
