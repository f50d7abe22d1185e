"""Texts that programs are checked on before a bundle is written. Our own; of several kinds, none long."""

PROMPTS = (
    "Tom has 14 apples. He gives 5 to his sister and buys 8 more. How many apples does he have now? "
    "First he has 14 - 5 = 9 apples. Then he buys 8, so he has 9 + 8 = 17 apples. The answer is 17.",
    "def fibonacci(n: int) -> int:\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    a, b = 0, 1\n"
    "    for _ in range(n):\n        a, b = b, a + b\n    return a\n\n\nprint([fibonacci(i) for i in range(10)])\n",
    "The lighthouse keeper wrote in his diary every evening. That night the storm came from the north-west, and "
    "the waves were higher than the rocks. He lit the lamp at six, wound the clockwork, and waited for the ship.",
    "{\"name\": \"Ada Lovelace\", \"born\": 1815, \"fields\": [\"mathematics\", \"computing\"], \"notes\": null}\n"
    "Explain what each field of this record means, and how you would validate it.",
    "Überall auf der Welt trinken Menschen Tee: 茶, чай, شاي. ☕ Which words for tea come from the sea route?",
)  # fmt: skip
