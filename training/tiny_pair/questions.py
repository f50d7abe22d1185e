"""Questions and their right answers, drawn from templates.

The answers are regular enough for a very small model, and for its drafter, but numbers, names and copied
words keep some tokens hard to guess. All text here is written for this project.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tiny_pair import words


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question, its answer, and further questions that only make sense behind it."""

    question: str
    answer: str
    follow_up: "Exchange | None" = None


def story(rng: Random) -> Exchange:
    """Somebody has things, gets some, gives some away."""
    name, other = rng.sample(words.NAMES, 2)
    thing, start, gain = rng.choice(words.THINGS), rng.randint(5, 40), rng.randint(2, 20)
    middle = start + gain
    loss = rng.randint(2, min(20, middle - 2))
    left = middle - loss
    verb = rng.choice(("buys", "finds", "gets"))
    lost = rng.randint(1, left - 1) if left > 1 else 0
    return Exchange(
        f"{name} has {start} {thing}. {name} {verb} {gain} more and gives {loss} to {other}. "
        f"How many {thing} does {name} have now?",
        f"{name} starts with {start} {thing}. After that {name} {verb} {gain} more, so there are "
        f"{start} + {gain} = {middle} {thing}. Then {name} gives {loss} to {other}, so "
        f"{middle} - {loss} = {left} {thing} are left. The answer is {left}.",
        Exchange(
            f"And if {name} loses {lost} of them?",
            f"Then {name} has {left} - {lost} = {left - lost} {thing}. The answer is {left - lost}.",
        ),
    )


def function(rng: Random) -> Exchange:
    """A short Python function with a given name."""
    purpose, body = rng.choice([*words.LIST_FUNCTIONS.items(), *words.TEXT_FUNCTIONS.items()])
    name, on_list = f"{rng.choice(words.WORDS)}_{rng.choice(words.WORDS)}", purpose in words.LIST_FUNCTIONS
    value = str([rng.randint(1, 9) for _ in range(3)]) if on_list else f"'{rng.choice(words.WORDS)}'"
    code = f"def {name}({'items' if on_list else 'text'}):\n{body}"
    return Exchange(
        f"Write a Python function called {name} that {purpose}.",
        f"Here is a function that {purpose}:\n\n```python\n{code}\n```\n\nCall it with `{name}({value})`.",
        Exchange("How do I call it?", f"You call it like this:\n\n```python\nprint({name}({value}))\n```"),
    )


def listing(rng: Random) -> Exchange:
    """So many things of a kind, numbered."""
    kind, count = rng.choice(list(words.LISTS)), rng.randint(3, 7)
    items = words.LISTS[kind][:count]
    lines = "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))
    return Exchange(
        f"{rng.choice(('Name', 'List', 'Give me'))} {words.COUNTS[count]} {kind}.",
        f"Here are {words.COUNTS[count]} {kind}:\n\n{lines}",
        Exchange("Which one is the last?", f"The last one is {items[-1]}."),
    )


def sorting(rng: Random) -> Exchange:
    """Words in alphabetical order."""
    given = rng.sample(words.WORDS, rng.randint(3, 5))
    ordered = sorted(given)
    return Exchange(
        f"Sort these words: {', '.join(given)}.",
        f"In alphabetical order the words are: {', '.join(ordered)}. The first word is {ordered[0]} and the "
        f"last word is {ordered[-1]}.",
    )


def record(rng: Random) -> Exchange:
    """Facts as JSON."""
    name, age, city = rng.choice(words.NAMES), rng.randint(18, 80), rng.choice(words.CITIES)
    items, member = rng.sample(words.THINGS, rng.randint(1, 3)), rng.random() < 0.5
    facts = {"name": name, "age": age, "city": city, "items": items, "member": member}
    return Exchange(
        f"Write this as JSON: {name} is {age} years old, lives in {city}, collects {' and '.join(items)} and "
        f"is {'a' if member else 'not a'} member.",
        f"```json\n{json.dumps(facts, indent=2, ensure_ascii=False)}\n```",
    )


def spelling(rng: Random) -> Exchange:
    """A word letter by letter."""
    word = rng.choice(words.WORDS)
    return Exchange(
        f"Spell the word {word}.",
        f"The word {word} is spelled {' - '.join(word)}. It has {len(word)} letters. The first letter is "
        f"{word[0]} and the last letter is {word[-1]}.",
        Exchange("And backwards?", f"Backwards it is {' - '.join(reversed(word))}."),
    )


def translation(rng: Random) -> Exchange:
    """One word in another language, or in all of them."""
    index, language = rng.choice(range(len(words.ENGLISH))), rng.choice(list(words.TRANSLATIONS))
    word = words.ENGLISH[index]
    lines = "\n".join(f"- {name}: {known[index]}" for name, known in words.TRANSLATIONS.items())
    return Exchange(
        f"What is '{word}' in {language}?",
        f"The word '{word}' is '{words.TRANSLATIONS[language][index]}' in {language}.",
        Exchange("And in all the other languages?", f"Here is '{word}' in every language I know:\n\n{lines}"),
    )


def weather(rng: Random) -> Exchange:
    """A report with a symbol of several bytes."""
    city, (sky, symbol) = rng.choice(words.CITIES), rng.choice(list(words.SKIES.items()))
    degrees = rng.randint(-9, 35)
    warm = "A light jacket will do" if degrees < 20 else "Drink enough water"
    advice = "Take a coat" if degrees < 10 else warm
    return Exchange(
        f"Write a weather report: {city}, {sky}, {degrees} degrees.",
        f"{symbol} Today it is {sky} in {city}, with a temperature of {degrees} °C. {advice}, and have a "
        f"nice day in {city}! {symbol}",
    )


def counting(rng: Random) -> Exchange:
    """Numbers in equal steps, up or down."""
    step, first, count = rng.randint(1, 5), rng.randint(1, 20), rng.randint(5, 12)
    last = first + step * count
    numbers = ", ".join(str(n) for n in range(first, last + 1, step))
    backwards = ", ".join(str(n) for n in range(last, first - 1, -step))
    return Exchange(
        f"Count from {first} to {last} in steps of {step}.",
        f"Counting in steps of {step}: {numbers}. That makes {count + 1} numbers.",
        Exchange("Now backwards, please.", f"Counting backwards: {backwards}."),
    )


def times_table(rng: Random) -> Exchange:
    """The first rows of a multiplication table."""
    factor, rows = rng.randint(2, 12), rng.randint(3, 8)
    lines = "\n".join(f"{i} \N{MULTIPLICATION SIGN} {factor} = {i * factor}" for i in range(1, rows + 1))
    return Exchange(
        f"Show the first {rows} rows of the {factor} times table.",
        f"Here is the {factor} times table:\n\n{lines}",
    )


def table(rng: Random) -> Exchange:
    """Names and numbers as a Markdown table, with their sum."""
    names = rng.sample(words.NAMES, rng.randint(2, 4))
    points = [rng.randint(1, 30) for _ in names]
    given = ", ".join(f"{name} {number}" for name, number in zip(names, points, strict=True))
    rows = "\n".join(f"| {name} | {number} |" for name, number in zip(names, points, strict=True))
    best = names[points.index(max(points))]
    return Exchange(
        f"Make a table of these points: {given}.",
        f"| name | points |\n| --- | --- |\n{rows}\n\n{best} has the most points.",
    )


def greeting(rng: Random) -> Exchange:
    """Small talk."""
    name = rng.choice(words.NAMES)
    hello, mood = rng.choice(("Hello", "Hi", "Good morning")), rng.choice(("😀", "👋", "🌻"))
    return Exchange(
        f"{hello}, I am {name}. {mood}",
        f"{hello} {name}! {mood} It is nice to meet you. I can count, sort, spell, translate and write small "
        f"programs. What can I do for you today, {name}?",
        Exchange("Thank you!", f"You are welcome, {name}! {mood}"),
    )


def tale(rng: Random) -> Exchange:
    """A longer story around given names, things and places."""
    (name, other), (city, town) = rng.sample(words.NAMES, 2), rng.sample(words.CITIES, 2)
    thing, place, treasure = rng.choice(words.THINGS), rng.choice(words.WORDS), rng.choice(words.WORDS)
    count = rng.randint(3, 30)
    return Exchange(
        f"Tell me a story about {name} from {city} and {other} from {town}, with {count} {thing}, a {place} "
        f"and a {treasure}.",
        f"Once upon a time {name} lived in {city}, in a house near a {place}. Every morning {name} took "
        f"{count} {thing} to the market. One day {other} came from {town} and asked: “May I have some of "
        f"your {thing}?” {name} gave half of them to {other}, and {other} gave {name} a {treasure}. From "
        f"then on {name} and {other} were friends, and the {treasure} stood beside the {place} in {city} "
        f"for many years. The end.",
        Exchange("What did they do with the gift?", f"The {treasure} stood beside the {place} in {city}."),
    )


# The harder kinds come up more often.
QUESTIONS: tuple[Callable[[Random], Exchange], ...] = (
    *(story, story, story, function, function, listing, sorting, record, spelling, translation, weather),
    *(counting, times_table, table, greeting, tale),
)
