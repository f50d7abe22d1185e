"""How much is kept, and what it depends on: the prompts, their form, their language, their length."""

from collections.abc import Mapping
from dataclasses import replace

from dflash_engines.finding import Finding, Verdict, ok, skipped, warning
from dflash_engines.signature import FEWEST_PASSES, judge
from dflash_runtime.bench.sweeps import context_text
from dflash_runtime.bench.tally import Tally
from dflash_runtime.doctor.patient import Patient
from dflash_runtime.prompt import Prompt

_MUCH_LESS = 0.5  # of the drafted tokens that are kept elsewhere
_THINKING = "enable_thinking"
_LENGTHS = (128, 512, 1536, 4096, 16384)
# One plain question, so that answers are alike; our own translations.
LANGUAGES = {
    "English": "Explain in a few sentences why the sky is blue and the sunset is red.",
    "German": "Erkläre in ein paar Sätzen, warum der Himmel blau und der Sonnenuntergang rot ist.",
    "Spanish": "Explica en unas pocas frases por qué el cielo es azul y la puesta de sol es roja.",
    "Russian": "Объясни в нескольких предложениях, почему небо голубое, а закат красный.",  # noqa: RUF001 - Cyrillic is meant
    "Chinese": "请用几句话解释为什么天空是蓝色的，而日落是红色的。",  # noqa: RUF001 - so is the comma
    "Japanese": "空が青く、夕焼けが赤い理由をいくつかの文で説明してください。",
    "Arabic": "اشرح في بضع جمل لماذا السماء زرقاء وغروب الشمس أحمر.",
}


def examine_acceptance(patient: Patient) -> list[Finding]:
    """By position, against the healthy signature."""
    found = patient.acceptance([patient.prompt(question) for question in patient.questions])
    curve = [(float(i), share) for i, share in enumerate(found.conditional, 1)]
    finding = replace(judge(found.conditional, found.count), curves={"kept where all before were": curve})
    if finding.verdict in (Verdict.OK, Verdict.SKIPPED):
        return [finding]
    return [replace(finding, fix=f"{finding.fix}. dflash-doctor TARGET DRAFTER tries other settings")]


def examine_template(patient: Patient) -> list[Finding]:
    """Chat against plain text, and thinking on against off where the template knows it."""
    if patient.decoder.encoder.template is None:
        return [skipped("prompt form", "the bundle has no chat template to compare plain text with")]
    chat = patient.acceptance([patient.prompt(q) for q in patient.questions])
    raw = patient.acceptance(list(patient.questions))
    found = _compared(
        "prompt form",
        {"chat template": chat, "plain text": raw},
        "plain text",
        "ask through the form that is kept better: it is the one that the drafter was trained on",
    )
    return [found, _thinking(patient)]


def _thinking(patient: Patient) -> Finding:
    modes = {f"thinking {word}": patient.acceptance(prompts) for word, prompts in _thinking_prompts(patient).items()}
    if not modes:
        return skipped("thinking mode", "the chat template knows no enable_thinking")
    better = max(modes, key=lambda name: modes[name].acceptance_length)
    fix = "set enable_thinking as it was when the drafter was trained; its card tells"
    return _compared("thinking mode", modes, better, fix)


def _thinking_prompts(patient: Patient) -> dict[str, list[Prompt]]:
    """Token ids of the questions in both modes; none where the template makes no difference."""
    encoder, tokenizer = patient.decoder.encoder, patient.decoder.tokenizer
    found: dict[str, list[Prompt]] = {}
    for word, value in (("on", True), ("off", False)):
        chats = [[{"role": "user", "content": question}] for question in patient.questions]
        texts = [encoder.render(chat, variables={_THINKING: value}) for chat in chats]
        found[word] = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return found if found["on"] != found["off"] else {}


def examine_languages(patient: Patient) -> list[Finding]:
    """The same question in several languages."""
    found = {name: patient.acceptance([patient.prompt(question)]) for name, question in LANGUAGES.items()}
    return [_compared("languages", found, "English", "drafting gains less there; train on such answers too")]


def examine_context(patient: Patient) -> list[Finding]:
    """The same question behind ever more text."""
    most = patient.decoder.engine.limits.max_len - patient.new_tokens
    lengths = [length for length in _LENGTHS if length <= most]
    if len(lengths) < 2:
        return [skipped("context length", f"the bundle holds {most + patient.new_tokens} tokens: too few to compare")]
    text = context_text(patient.decoder, patient.questions, lengths[-1])
    found = {f"{length} tokens": patient.acceptance([text[len(text) - length :]]) for length in lengths}
    points = [(float(n), tally.acceptance_length) for n, tally in zip(lengths, found.values(), strict=True)]
    finding = _compared(
        "context length",
        found,
        f"{lengths[0]} tokens",
        "the drafter was trained on shorter texts: train it on longer ones, or decode "
        "long prompts with --block-size 1; check its sliding window and RoPE scaling",
    )
    return [replace(finding, curves={"acceptance length": points})]


def _compared(check: str, found: Mapping[str, Tally], reference: str, fix: str) -> Finding:
    """A warning where something is kept much less than the reference, and there is enough of both to say so."""
    shown = ", ".join(f"{name} {tally.acceptance_length:.2f}" for name, tally in found.items())
    shown = f"acceptance length: {shown}"
    told = {name: tally.acceptance_length - 1 for name, tally in found.items() if tally.count >= FEWEST_PASSES}
    if reference not in told or len(told) < 2:
        return ok(check, f"{shown}; too few blocks to judge")
    less = [name for name, kept in told.items() if kept < _MUCH_LESS * told[reference]]
    return warning(check, f"{shown}; much less than {reference}: {', '.join(less)}", fix) if less else ok(check, shown)
