"""The prompts of the quality check: text that a model has something to say to, the same for every engine of a study.

Token ids at random would be no test: after nonsense many tokens are nearly as likely as the best, and any rounding
swaps them.
"""

from __future__ import annotations

import random

from autotune.spec import Workload

COUNT = 64
"""Prompts of a check; the short ones first, the others as long as the workload's."""
LONGEST_TOKENS = 2048
_CHARACTERS_PER_TOKEN = 3
"""Fewer than English has, so that a prompt is rather too short for the engine's context than too long."""
_SEED = 20
_SHORT = (
    "The capital of France is",
    "Q: What is 17 times 23? Let us work it out step by step.\nA:",
    "def fibonacci(n: int) -> int:\n    ",
    "Translate into German: The weather is fine today, so we walk to the lake.\n",
    "The three states of matter are",
    "List the planets of the solar system in order of their distance from the sun:\n1.",
    "SELECT name, COUNT(*) FROM orders ",
    '{"name": "Ada Lovelace", "born": 1815, "occupation":',
    "Once upon a time in a small village by the sea there lived",
    "Explain in two sentences why the sky is blue.\n",
    "El agua hierve a",
    "Water consists of hydrogen and",
    "If all squares are rectangles and this shape is a square, then",
    "The quick brown fox jumps over",
    "import numpy as np\n\ndef softmax(x):\n",
    "Summarise: The meeting was moved from Monday to Thursday because the room is painted.\nSummary:",
    "A train leaves at 9:40 and arrives at 13:05. The journey takes",
    "The opposite of 'generous' is",
    "Photosynthesis turns carbon dioxide and water into",
    "Classify the sentiment as positive or negative: 'I waited an hour and the food was cold.'\nSentiment:",
    "The derivative of x^3 + 2x is",
    "Dear Ms Smith,\n\nthank you for your application. We are pleased to",
    "中国的首都是",
    "for (int i = 0; i < 10; i++) {\n    ",
)
_PASSAGES = (
    "The steam engine changed how goods were made and moved. Mills no longer had to stand by a river, and a "
    "journey that had taken a week by coach took a day by rail. Cities grew around the new stations.",
    "A bee colony has one queen, some hundred drones and many thousand workers. The workers clean the cells, feed "
    "the larvae, build combs and, in the last weeks of their life, fly out to collect nectar and pollen.",
    "To make bread, mix flour, water, salt and yeast, knead the dough for ten minutes and let it rise until it "
    "has doubled. Shape it, let it rise once more, and bake it in a hot oven until the crust sounds hollow.",
    "An index makes a query fast because the database does not need to read every row. It costs space, and each "
    "insert and update has to maintain it, so a table with many indexes is slow to write.",
    "The moon always shows us the same side because it turns once about its axis while it circles the earth once. "
    "What we see of it changes only with the light of the sun.",
    "The committee met on the third of May. The treasurer reported that the repairs of the roof had cost less "
    "than planned, and the members decided to use the rest for new books.",
    "When a function calls itself it needs a case in which it does not. Without one the calls pile up until the "
    "stack is full. Many problems on trees are solved in a few lines this way.",
    "Glass is made of sand, soda and lime, melted together at about fifteen hundred degrees. While it is soft it "
    "can be blown, pressed or drawn; when it cools slowly it does not crack.",
)
_QUESTIONS = (
    "What is said first?",
    "Continue the last thought.",
    "Sum this up in one sentence.",
    "Which numbers occur?",
)


def quality_prompts(workload: Workload) -> list[str]:
    """Short prompts, then some of the workload's own length: its dataset's where that has texts, else made of prose."""
    drawn = random.Random(_SEED)
    dataset = workload.dataset.load() if workload.dataset is not None else None
    long = []
    for _ in range(COUNT - len(_SHORT)):
        if dataset is not None and dataset.has_text:
            text = "\n\n".join(content for _, content in drawn.choice(dataset.rows).messages)
            long.append(text[: LONGEST_TOKENS * _CHARACTERS_PER_TOKEN])
        else:
            low, high = workload.input_tokens.low, min(workload.input_tokens.high, LONGEST_TOKENS)
            long.append(_prose(drawn, drawn.randint(min(low, high), high) * _CHARACTERS_PER_TOKEN))
    return [*_SHORT, *long]


def _prose(drawn: random.Random, characters: int) -> str:
    """Passages in random order, the last one cut, and a question."""
    question = "\n\n" + drawn.choice(_QUESTIONS) + "\n"
    text = ""
    while len(text) + len(question) < characters:
        text += " ".join(drawn.sample(_PASSAGES, len(_PASSAGES))) + " "
    return text[: max(0, characters - len(question))] + question
