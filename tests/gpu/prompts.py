"""Questions for an instruct model, as many different ones as are asked for: forms of question over things and places."""

import itertools
import json
import random
from pathlib import Path

FORMS = (
    "Explain how {thing} works to a child.",
    "Explain how {thing} works to an engineer.",
    "Write a short story about {person} and {thing}.",
    "Write a poem about {thing} in {place}.",
    "List five facts about {thing}.",
    "List three reasons to visit {place} and three reasons not to.",
    "What would {person} say about {thing}?",
    "Write a letter from {person} to the mayor of {place}.",
    "Compare {thing} with {other}. Which would you choose?",
    "Give step by step instructions for repairing {thing}.",
    "Summarize the history of {thing} in {place} in one paragraph.",
    "Write a dialogue between {person} and a traveller in {place}.",
    "What are the advantages and disadvantages of {thing}?",
    "Describe {place} in winter.",
    "Plan a day in {place} for {person}.",
    "Write a Python class that models {thing}.",
)
THINGS = (
    "a bicycle",
    "a sailing boat",
    "a wind turbine",
    "a pocket watch",
    "a steam engine",
    "a violin",
    "a telescope",
    "a greenhouse",
    "a lighthouse",
    "a printing press",
    "a compass",
    "a radio",
    "a camera",
    "a bakery oven",
    "a suspension bridge",
    "a battery",
    "a kite",
    "a water mill",
    "a submarine",
    "a hot air balloon",
    "a library",
    "a vaccine",
    "a solar panel",
    "a thermometer",
    "a piano",
    "a chess clock",
    "a refrigerator",
    "a train station",
    "a volcano",
    "a coral reef",
)
PERSONS = (
    "a retired teacher",
    "a young doctor",
    "a sailor",
    "a farmer",
    "a detective",
    "an astronaut",
    "a baker",
    "a librarian",
    "a painter",
    "a nurse",
    "a carpenter",
    "a student",
    "a lighthouse keeper",
    "a translator",
    "a chess player",
)
PLACES = (
    "Lisbon",
    "a village in the Alps",
    "Tokyo",
    "the Sahara",
    "a small island",
    "Vienna",
    "Buenos Aires",
    "the Arctic",
    "a fishing port",
    "Nairobi",
    "Istanbul",
    "a mountain monastery",
    "Montreal",
    "a desert oasis",
    "Prague",
)


def prompts(count: int, seed: int = 0) -> list[str]:
    """So many different questions, in an order that the seed fixes; ValueError if there are not so many."""
    made = {
        form.format(thing=thing, other=other, person=person, place=place)
        for form in FORMS
        for thing, other, person, place in itertools.product(THINGS, THINGS[:7], PERSONS, PLACES)
    }
    return random.Random(seed).sample(sorted(made), count)


def write(path: Path, count: int) -> Path:
    """The questions as ``data.prompts`` reads them."""
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts(count)))
    return path
