"""The words that the questions are made of."""

NAMES = ("Mia", "Tom", "Ada", "Omar", "Lena", "Raj", "Zoë", "José", "Anna", "Kofi", "Yuki", "Sara")
CITIES = ("Oslo", "Köln", "Paris", "Kyoto", "Lima", "Zürich", "Cairo", "Malmö", "Rome", "Delhi")
THINGS = ("apples", "pears", "books", "coins", "stamps", "pens", "cards", "eggs", "marbles", "shells")
WORDS = (
    *("river", "apple", "stone", "cloud", "tiger", "lemon", "bread", "chair", "music", "green"),
    *("paper", "horse", "light", "ocean", "sugar", "train", "watch", "zebra", "field", "honey"),
    *("candle", "garden", "window", "silver", "yellow", "planet", "rabbit", "winter", "castle", "forest"),
)
COUNTS = ("zero", "one", "two", "three", "four", "five", "six", "seven")
LISTS = {
    "fruits": ("apple", "banana", "cherry", "lemon", "mango", "orange", "pear"),
    "animals": ("cat", "dog", "horse", "lion", "mouse", "rabbit", "tiger"),
    "colours": ("red", "orange", "yellow", "green", "blue", "violet", "white"),
    "planets": ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus"),
    "metals": ("iron", "copper", "silver", "gold", "tin", "lead", "zinc"),
    "rivers": ("Nile", "Amazon", "Rhine", "Danube", "Ganges", "Volga", "Loire"),
}
ENGLISH = ("water", "bread", "green", "five", "king", "sun")
TRANSLATIONS = {
    "German": ("Wasser", "Brot", "grün", "fünf", "König", "Sonne"),
    "French": ("eau", "pain", "vert", "cinq", "roi", "soleil"),
    "Spanish": ("agua", "pan", "verde", "cinco", "rey", "sol"),
    "Japanese": ("水", "パン", "緑", "五", "王", "太陽"),
    "Russian": ("вода", "хлеб", "зелёный", "пять", "король", "солнце"),
}
SKIES = {"sunny": "☀️", "rainy": "🌧️", "snowy": "❄️", "windy": "🌬️", "stormy": "⛈️", "cloudy": "☁️"}

LIST_FUNCTIONS = {
    "adds up a list": """\
    total = 0
    for item in items:
        total += item
    return total""",
    "counts the items of a list": """\
    count = 0
    for item in items:
        count += 1
    return count""",
    "returns the largest item of a list": """\
    best = items[0]
    for item in items:
        if item > best:
            best = item
    return best""",
    "returns the smallest item of a list": """\
    best = items[0]
    for item in items:
        if item < best:
            best = item
    return best""",
    "doubles every item of a list": "    return [2 * item for item in items]",
    "keeps the even items of a list": "    return [item for item in items if item % 2 == 0]",
}
TEXT_FUNCTIONS = {
    "reverses a text": "    return text[::-1]",
    "counts the vowels of a text": "    return sum(letter in 'aeiou' for letter in text)",
    "says whether a text is a palindrome": "    return text == text[::-1]",
}
