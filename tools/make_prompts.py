"""make_prompts: write the prompts under data/prompts/.

    python -m tools.make_prompts            the committed files again, byte for byte
    python -m tools.make_prompts FOLDER     the same below FOLDER

A prompt is a template filled with a subject. Templates and subjects of the evaluation prompts are lists of their own:
a draft that has learnt the training templates by heart gains nothing in evaluation. tests/test_make_prompts.py holds
the lists to that.
"""
import json
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from stages.lib.files import write_text

SEED = 20
TURNS_EVERY = {"train": 10, "eval": 6}
MORE = 20


@dataclass(frozen=True)
class Kind:
    """`count` prompts of one sort.

    templates: texts with {s} ({S}: with a capital) for the subject and {text} for its body, {n} and {m} for two names;
    a pair (text, numbers) has numbers too, such as "a=3-9 b=10-60/5 c=a*b": ranges, with a step after the slash, or
    a calculation with earlier ones.
    subjects: phrases, or a mapping from a phrase to its body (a passage, a piece of code).
    follow_ups: second user turns that fit any of the templates.
    """
    count: int
    templates: list
    subjects: list | dict
    follow_ups: list = field(default_factory=list)


def pairs(kind, rng):
    """`kind.count` different (template, subject) pairs, each subject and each template used about equally often."""
    every = [(template, subject) for template in kind.templates for subject in kind.subjects]
    assert len(every) >= kind.count, f"{len(every)} pairs for {kind.count} prompts: {kind.templates[0]}"
    rng.shuffle(every)
    uses, chosen = Counter(), []
    for _ in range(kind.count):
        pair = min(every, key=lambda pair: (uses["subject", pair[1]], uses["template", pair[0]]))
        every.remove(pair)
        uses["template", pair[0]] += 1
        uses["subject", pair[1]] += 1
        chosen.append(pair)
    return chosen


def draw(numbers, rng):
    """Values of a template's numbers, in order of definition."""
    values = {}
    for definition in numbers.split():
        name, rule = definition.split("=")
        if choice := re.fullmatch(r"(\d+)-(\d+)(?:/(\d+))?", rule):
            low, high, step = int(choice[1]), int(choice[2]), int(choice[3] or 1)
            values[name] = low + step * rng.randrange((high - low) // step + 1)
        else:
            left, sign, right = re.fullmatch(r"(\w+)([*+-])(\w+)", rule).groups()
            left, right = (int(part) if part.isdigit() else values[part] for part in (left, right))
            values[name] = {"*": left * right, "+": left + right, "-": left - right}[sign]
    return values


def fill(kind, template, subject, names, rng):
    text, numbers = template if isinstance(template, tuple) else (template, "")
    body = kind.subjects[subject] if isinstance(kind.subjects, dict) else ""
    first, second = rng.sample(names, 2)
    prompt = text.format(s=subject, S=capital(subject), text=body, n=first, m=second, **draw(numbers, rng))
    return capital(prompt)


def capital(text):
    return text[0].upper() + text[1:]


def make(split, name):
    """Rows of data/prompts/<split>/<name>.jsonl, and the (template, subject) pair behind each, in the file's order."""
    rng = random.Random(f"{SEED} {split} {name}")
    made = []
    for kind in SETS[split][name]:
        for number, (template, subject) in enumerate(pairs(kind, rng)):
            content = {"prompt": fill(kind, template, subject, NAMES[split], rng)}
            if kind.follow_ups and number % TURNS_EVERY[split] == 0:
                content = {"turns": [content["prompt"], rng.choice(kind.follow_ups)]}
            made.append((content, (template, subject)))
    # Shuffled, so that the first rows of a file are a fair sample of all its kinds.
    rng.shuffle(made)
    prefix = name if split == "train" else f"eval-{name}"
    rows = [{"id": f"{prefix}-{number:04d}", **content} for number, (content, _) in enumerate(made, 1)]
    return rows, [pair for _, pair in made]


def make_more():
    """Rows of data/prompts/eval/more.jsonl: MORE further questions a set from the evaluation lists, pairs that its files do not hold."""
    rows = []
    for name in SETS["eval"]:
        rng, used = random.Random(f"{SEED} more {name}"), {pair for _, pair in zip(*make("eval", name))}
        left = [(kind, template, subject) for kind in SETS["eval"][name] for template in kind.templates for subject in kind.subjects
                if (template, subject) not in used]
        rows += [{"id": f"eval-more-{name}-{number:04d}", "prompt": fill(kind, template, subject, NAMES["eval"], rng)}
                 for number, (kind, template, subject) in enumerate(rng.sample(left, MORE), 1)]
    return rows


def main(folder="data/prompts"):
    made = {f"{split}/{name}": make(split, name)[0] for split, sets in SETS.items() for name in sets} | {"eval/more": make_more()}
    for name, rows in made.items():
        path = Path(folder) / f"{name}.jsonl"
        write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        print(f"{path}: {len(rows)} prompts")


NAMES = {
    "train": [
        "Anna", "Ben", "Carla", "David", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jamal", "Kate", "Liam", "Mina",
        "Noah",
        "Olga", "Pedro", "Quinn", "Rosa", "Sam", "Tara", "Umar", "Vera", "Will", "Yara", "Zoe", "Amir", "Bella",
        "Connor",
        "Daria", "Emil", "Fiona", "George", "Hana", "Ivan", "Julia", "Kofi", "Leila", "Marco", "Nadia", "Oscar"],
    "eval": [
        "Astrid", "Bruno", "Celine", "Dmitri", "Esther", "Felix", "Gita", "Henrik", "Isla", "Jonas", "Keiko", "Lorenzo",
        "Maeve", "Nikhil", "Odette", "Priya", "Rafael", "Sonja", "Tobias", "Wanda"],
}

CHAT_TRAIN = [
    Kind(92, [
        "Can you explain {s} to me in simple words, with one example?",
        "I never really understood {s}. Could you explain it as if I were ten years old?",
        "What is {s}, and why does it matter in everyday life?",
        "Give me a short introduction to {s}, no longer than two paragraphs.",
        "My daughter asked me about {s} at breakfast. What should I tell her?",
        "What are the three most important things to know about {s}?",
        "I have an exam next week. Please help me revise {s} with short notes.",
        "Explain {s} step by step, and mention one thing people often get wrong.",
        "How would a good teacher describe {s} to a class of beginners?",
        "Tell me something surprising about {s} and explain the reason behind it.",
    ], [
        "photosynthesis", "gravity", "inflation in the economy", "how vaccines work", "the water cycle",
        "compound interest",
        "plate tectonics", "the greenhouse effect", "how a fridge keeps food cold", "natural selection",
        "how rainbows form",
        "static electricity", "supply and demand", "the human immune system", "how aeroplanes stay in the air",
        "how the moon causes tides", "black holes", "the placebo effect", "machine learning",
        "how batteries store energy",
        "how bread dough rises", "the difference between weather and climate", "how the heart pumps blood",
        "why leaves change colour in autumn", "how search engines rank pages", "what a mortgage is"],
        ["Can you give me another example?", "Now say the same thing in two sentences.",
         "Is there anything about it that experts still argue over?", "Which part of that is hardest for beginners?",
         "How would you draw this as a simple picture?", "Write three quiz questions about what you just said."]),
    Kind(76, [
        "How do I {s}? Please give me clear steps that a beginner can follow.",
        "I want to {s} this weekend. What do I need, and where do I start?",
        "What are common mistakes when people {s} for the first time?",
        "Give me a checklist for someone who is about to {s} without help.",
        "What is the cheapest way to {s} without doing a bad job?",
        "I tried to {s} last month and it went wrong. What should I do differently?",
        "How long does it usually take to {s}, and can I speed it up?",
        "Please explain how to {s} in five short numbered steps.",
        "Is it hard to {s} at home? Tell me honestly what to expect.",
    ], [
        "repot a house plant", "change a bicycle tyre", "bake a loaf of bread", "paint a bedroom wall",
        "iron a cotton shirt",
        "clean a greasy oven", "learn the guitar", "pack a suitcase for a week", "start a small compost heap",
        "train a puppy to sit", "write a CV for a first job", "set up a home wireless network", "sew on a button",
        "grow tomatoes on a balcony", "remove a coffee stain from a carpet", "make fresh pasta",
        "hang a heavy picture frame",
        "plan a birthday party for children", "back up all the photos on a phone", "descale a kettle",
        "prune a rose bush",
        "sharpen a kitchen knife"],
        ["What can I use if I do not have the right tools?", "Which of these steps can I skip if I am in a hurry?",
         "How do I know that I have done it well?", "Put that into a table with a time for each step.",
         "What should I do if it goes wrong halfway?"]),
    Kind(66, [
        "{S}. What would you do in my place?",
        "I need some advice. {S}. How should I handle this?",
        "{S}. Please give me three options, each with one advantage and one disadvantage.",
        "I feel stuck: {s}. What is a small first step I could take today?",
        "{S}. Help me write down what I want to say about it before I talk to anyone.",
        "Be honest with me. {S}. Am I making too much of this?",
        "{S}. How have other people dealt with a situation like this?",
    ], [
        "my neighbour plays loud music late at night", "my best friend keeps cancelling our plans",
        "I was offered a new job but I like my team", "I cannot fall asleep before two in the morning",
        "my flatmate never washes the dishes", "I want to save money but I always spend it all",
        "I am nervous about giving a speech at a wedding", "my son refuses to eat vegetables",
        "I forgot my mother's birthday yesterday", "I keep checking my phone while I study",
        "my manager takes credit for my work", "I am moving to a city where I know nobody",
        "my parents want me to study law and I prefer music", "I feel tired every afternoon at the office",
        "I lent my cousin some money and he has not paid it back",
        "my grandmother feels lonely since she stopped driving",
        "I have too many hobbies and finish nothing", "our dog barks whenever we leave the house"],
        ["What if that does not work?", "Can you write the first sentence of what I should say?",
         "I am a bit shy. Is there a gentler way?", "Which option would you choose first, and why?"]),
    Kind(66, [
        "Write a short story about {s}. Give it a happy ending.",
        "Tell me a bedtime story about {s} in fewer than 150 words.",
        "Write the opening paragraph of a mystery novel about {s}.",
        "Please write a funny poem of eight lines about {s}.",
        "Invent a short fable about {s}, with a moral at the end.",
        "Write a dialogue between two people who meet {s} by accident.",
        "Imagine a day in the life of {s} and describe it in the first person.",
        "Write a story about {s} in which nobody says a single word.",
    ], [
        "a lighthouse keeper who is afraid of the dark", "a cat that can read maps",
        "a baker who loses her sense of taste",
        "two robots stranded on a beach", "an old clock that runs backwards",
        "a boy who finds a tiny dragon in his school bag",
        "a taxi driver in a city of ghosts", "a violin that plays by itself", "a gardener who talks to trees",
        "a postman with one very old letter", "a snowman that wants to see summer",
        "a librarian who hides a secret door",
        "a young knight who hates fighting", "a whale that sings the wrong song",
        "the last shopkeeper in an empty village",
        "a painter who can only see in grey", "a mouse that lives in a cinema", "a pilot who collects clouds"],
        ["Now write it again from the point of view of another character.",
         "Give the story a title and a sad ending instead.",
         "What happens the next day?", "Make it half as long.", "Add a second character who disagrees with the first."]
         ),
    Kind(60, [
        "Write a polite email to {s}.",
        "Please draft a short letter to {s}. Keep it friendly but clear.",
        "I have to write to {s}, and I do not know how to begin. Can you write it for me?",
        "Help me write a formal message of about 100 words to {s}.",
        "Write two versions of a text message to {s}: one casual and one formal.",
        "What is a good subject line and first sentence for an email to {s}?",
        "Write a warm note to {s} and end it with a question.",
    ], [
        "a landlord about a heating system that has been broken for three days",
        "a teacher to thank her for her help during the year", "a hotel to ask for an early check-in on Friday",
        "a customer whose parcel arrived damaged", "a colleague who is leaving the company after ten years",
        "a school to explain why my child was absent on Monday", "a bank to dispute a payment that I did not make",
        "a friend to apologise for missing her concert", "a local newspaper about dangerous traffic near the park",
        "a job applicant to say that we chose somebody else", "my aunt to thank her for a birthday present",
        "a dentist to move an appointment to next week",
        "the whole team to announce a new office rule about lunch breaks",
        "a charity to offer help as a volunteer on Saturdays", "a plumber to ask for a price before the work begins",
        "a gym to cancel my membership at the end of the month"],
        ["Make it shorter and a little more formal.", "Now write the reply that I might get.",
         "Can you remove anything that sounds rude?", "Translate the tone: make it sound cheerful."]),
    Kind(60, [
        "Give me ten ideas for {s}.",
        "I am looking for {s}. Please suggest five and say in one sentence why each is good.",
        "Make a list of {s}, sorted from easy to difficult.",
        "What are some unusual ideas for {s} that most people do not think of?",
        "Help me choose: list four ideas for {s} and recommend one of them.",
        "We need {s} by tomorrow and have almost no money. What can we do?",
        "Draw up a small table of {s} with a short comment next to each.",
    ], [
        "cheap family dinners with rice", "indoor games for a rainy afternoon",
        "gifts for a grandfather who likes fishing",
        "names for a small coffee shop", "healthy snacks for a long car journey", "topics for a school science project",
        "ways to use less electricity at home", "questions to ask in a job interview", "weekend trips without a car",
        "short exercises for people who sit all day", "decorations for a spring party",
        "hobbies for a retired engineer",
        "ways to greet a new neighbour", "books for teenagers who dislike reading", "slogans for a bicycle repair shop",
        "icebreakers for the first day of a course"],
        ["Which one is best for a group of six?", "Give me five more, but stranger.",
         "Cross out the expensive ones and explain why.", "Turn your favourite into a plan for one day."]),
    Kind(44, [
        "What is the difference between {s}? Please answer with a short example of each.",
        "Compare {s} in a few sentences and tell me which suits a beginner.",
        "My friend and I argue about {s}. What are the strong points on both sides?",
        "Which would you recommend, if I have little time and little money: {s}?",
        "Make a table with three rows that compares {s}.",
        "People often confuse {s}. How can I remember which is which?",
    ], [
        "tea and coffee", "frogs and toads", "renting and buying a flat", "cats and dogs as pets",
        "butter and margarine",
        "a virus and a bacterium", "electric cars and petrol cars", "working at home and in an office",
        "novels and short stories", "running and swimming", "a debit card and a credit card", "comets and asteroids",
        "baking soda and baking powder", "paper books and audio books"],
        ["Which of the two do most people prefer, and why?", "Now make the case for the other one."]),
    Kind(36, [
        "I am going to {s} for three days. What should I see, and what should I eat?",
        "Describe {s} to somebody who has never travelled outside their own country.",
        "What should a visitor know about the customs and manners of {s} before arriving?",
        "Write a cheerful postcard of about 60 words from {s}.",
        "When is the best time of year to visit {s}, and what should I pack?",
        "Tell me a little about the history of {s} in plain language.",
    ], [
        "Lisbon", "the north of Norway", "Kyoto", "Mexico City", "the Scottish Highlands", "Cairo", "New Zealand",
        "Istanbul",
        "the coast of Croatia", "Buenos Aires", "Marrakesh", "Vietnam"],
        ["I will have two small children with me. What changes?", "And what should I avoid?",
         "Suggest something for a rainy day there."]),
]

CHAT_EVAL = [
    Kind(6, [
        "Somebody at work mentioned {s} and everyone nodded except me. What were they talking about?",
        "Pretend you are a museum guide and talk about {s} for one minute.",
        "Use a kitchen comparison to make {s} clear to me.",
        "True or false: most adults misunderstand {s}. Defend your answer briefly.",
        "Which question about {s} should I ask an expert, and what would the expert probably answer?",
        "Start from zero and build up my knowledge of {s} in four sentences.",
    ], ["sonar", "echoes in mountain valleys", "the ozone layer", "bankruptcy", "photographic memory",
        "how glaciers carve land"],
        ["Thanks. What would a sceptic say to that?", "Please boil your reply down to one line."]),
    Kind(5, [
        "Guide me through this task as if we were on the telephone: I have to {s}.",
        "Before I {s}, which safety rules should I bear in mind?",
        "My aim is to {s} before guests come at six. Make me a timetable.",
        "Is there a trick that professionals know when they {s}?",
        "Rank the tools required to {s} by importance.",
    ], ["unblock a kitchen sink", "fold a fitted sheet", "pitch a tent in strong wind", "poach an egg",
        "tune a ukulele"],
        ["Fine, but my hands are full. Shorten it, please."]),
    Kind(4, [
        "Here is my worry: {s}. Reply like a wise older sister.",
        "{S}, and it has started to bother me. Where do I go from here?",
        "What questions should I ask myself, given that {s}?",
        "Offer me some comfort and then a practical plan, because {s}.",
    ], ["nobody laughs at my jokes in the new choir", "I bought a boat on impulse", "my twin has decided to emigrate",
        "every houseguest overstays their welcome"],
        ["That sounds difficult for me. Anything easier?"]),
    Kind(5, [
        "Compose a limerick featuring {s}, with clean rhymes throughout.",
        "Create a six-sentence science fiction tale in which {s} saves the day.",
        "Narrate, in the style of a radio play, how {s} missed the ferry.",
        "Give me a diary entry dated last Tuesday, written by {s}.",
        "Produce the blurb on the back cover of a novel whose hero is {s}.",
    ], ["a retired circus acrobat", "an umbrella with opinions", "a nervous astronaut", "a penguin on a skateboard",
        "a beekeeper from a floating island"],
        ["Swap the hero for a villain, please."]),
    Kind(4, [
        "Prepare a brief complaint addressed to {s}; stay calm and state what you expect.",
        "What could I write inside a greetings card for {s}?",
        "Put together a voicemail script of four sentences meant for {s}.",
        "Turn my jumbled thoughts into a tidy memo for {s}: late deliveries, unclear labels, rising costs.",
    ], ["an airline that lost my luggage", "a couple celebrating their golden anniversary",
        "a carpenter who never rings back",
        "the warehouse supervisor"],
        ["Give it a slightly warmer closing, please."]),
    Kind(3, [
        "Brainstorm seven possibilities, wild ones included: {s}.",
        "Without repeating the obvious, what belongs on a shortlist of {s}?",
        "If you could pick merely three {s}, which ones and for whom?",
    ], ["mascots for a hockey club", "picnic dishes that survive hot sunshine", "keepsakes made from seashells"]),
    Kind(3, [
        "Someone must decide between {s} today. Play the judge and announce a verdict.",
        "Where do {s} resemble each other, and where do they part ways?",
        "Settle a bet about {s}: which one is older, and how sure are you?",
    ], ["a harp and a piano", "alligators and crocodiles", "typewriters and fountain pens"]),
]

MATHS_TRAIN = [
    Kind(122, [
        ("{n} buys {a} {s} for ${b} each and gives the shopkeeper ${c}. How much change does {n} get?",
         "a=3-9 b=2-9 d=a*b r=5-19 c=d+r"),
        ("A shop sells {s} in packs of {a}. {n} needs {b} of them. How many packs must {n} buy, and how many "
         "are left over?",
         "a=4-12 b=25-90"),
        ("{n} has {a} {s}. {m} has {b} times as many. How many do they have together?", "a=6-24 b=2-6"),
        ("A box of {s} costs ${a}. This week there is a discount of {b} percent. What is the new price?",
         "a=20-120/20 b=5-40/5"),
        ("A shopkeeper buys {a} {s} for ${b} each and sells them for ${c} each. What is the total profit?",
         "a=15-80/5 b=3-12 r=2-8 c=b+r"),
        ("{n} sold {a} {s} on Monday, {b} on Tuesday and twice as many on Wednesday as on Tuesday. How many is "
         "that altogether?",
         "a=12-60 b=8-40"),
        ("On a shelf there are {a} rows with {b} {s} each. After {c} are sold, how many remain?",
         "a=4-9 b=6-15 c=5-20"),
        ("The price of {s} went up from ${a} to ${b}. By what percentage did it rise? Show how you get there.",
         "a=20-80/20 r=5-30/5 b=a+r"),
        ("{n} and {m} want to buy {a} {s} together for ${b}. {n} pays ${c} more than {m}. How much does each of "
         "them pay?",
         "a=2-8 k=10-40 c=4-12/2 e=k*2 b=e+c"),
        ("{a} {s} cost ${b}. At the same price, what do {c} of them cost?", "a=3-8 p=2-9 b=a*p c=9-25"),
        ("A factory makes {a} {s} an hour. It runs {b} hours a day, {c} days a week. How many does it make in "
         "{d} weeks?",
         "a=20-90/10 b=6-12 c=5-7 d=2-6"),
        ("{n} counted {a} {s} in the storeroom; {b} percent of them were damaged. How many can still be sold?",
         "a=100-600/100 b=4-35"),
        ("Last year {n} owned {a} {s}. {n} gave a quarter of them to {m} and then bought {b} new ones. How many "
         "does {n} have now?",
         "k=5-20 a=k*4 b=3-17"),
    ], [
        "pencils", "notebooks", "candles", "mugs", "light bulbs", "tennis balls", "towels", "postcards", "umbrellas",
        "socks",
        "picture frames", "batteries", "plant pots", "toy cars", "keyrings", "sweaters", "paint brushes", "spoons",
        "hats",
        "stickers", "lamps", "card games"]),
    Kind(80, [
        ("{n} wants to share {c} {s} equally among {a} friends. How many does each friend get?", "a=4-12 b=3-9 c=a*b"),
        ("{n} ate {a} {s}, {m} ate {b} and there are {c} left on the plate. How many were there at first?",
         "a=2-9 b=3-11 c=4-16"),
        ("A recipe for {a} people needs {b} {s}. How many are needed for {c} people?", "a=2-6 k=2-5 b=a*k c=8-20"),
        ("A bag holds {a} {s}, and {b} percent of them are eaten in one day. How many are left?",
         "a=40-200/20 b=10-75/5"),
        ("{n} eats {a} {s} a day, and {m} eats {b} a day. For how many days will {c} of them last?",
         "a=2-5 b=1-4 t=a+b d=4-12 c=t*d"),
        ("There are {a} {s} in a bowl. {n} takes one third of them, and then {m} takes half of what is left. "
         "How many remain?",
         "k=4-20 a=k*3"),
        ("Divide {a} {s} between {n} and {m} in the ratio {b} to {c}. How many does each one get?",
         "b=2-4 c=5-7 t=b+c k=3-9 a=t*k"),
        ("{n} packs {a} {s} into boxes of {b}. How many full boxes are there, and how many {s} are not packed?",
         "a=50-140 b=6-12"),
        ("One kilogram of {s} costs ${a}. {n} buys {b} grams. How much does {n} pay?", "a=4-20/2 b=250-1750/250"),
    ], [
        "grapes", "biscuits", "cherries", "walnuts", "pancakes", "strawberries", "dumplings", "olives", "sandwiches",
        "plums",
        "chocolates", "meatballs", "apricots", "cupcakes"]),
    Kind(66, [
        ("{s} travels at {a} kilometres per hour. How far does it go in {b} hours and 30 minutes?",
         "a=40-120/10 b=2-6"),
        ("{s} covers {c} kilometres in {b} hours. What is its average speed?", "a=30-110/5 b=2-7 c=a*b"),
        ("{s} leaves at 9:{a} and arrives {b} hours and {c} minutes later. At what time does it arrive?",
         "a=10-50/5 b=1-5 c=15-55/5"),
        ("{s} uses {a} litres of fuel for every 100 kilometres. How much fuel does it need for {b} kilometres?",
         "a=5-40/5 b=150-900/50"),
        ("{s} goes {a} kilometres at {b} kilometres per hour and returns at {c} kilometres per hour. How long "
         "is it on the road?",
         "k=2-4 c=30-50/10 b=c*2 a=b*k"),
        ("{s} carries {a} passengers. At the first stop {b} get off and {c} get on; at the second stop half of "
         "them get off. "
         "How many are still on board?", "k=12-30 b=3-9 r=2-8/2 e=k*2 c=b+r a=e-r"),
        ("{s} is {a} minutes late, although it left {b} minutes early. It was planned to take {c} minutes. How "
         "long did it take?",
         "a=5-25 b=2-10 c=40-150/10"),
        ("Two towns are {c} kilometres apart. {s} sets off from one of them at {a} kilometres per hour. How far "
         "is it from the "
         "other town after {b} hours?", "a=30-80/10 b=2-4 d=a*b r=20-90/5 c=d+r"),
    ], [
        "a slow train", "a delivery van", "a bus", "a motorboat", "a truck full of apples", "a small car", "a tram",
        "a passenger ship", "a minibus", "a camper van", "a night coach", "a river barge"]),
    Kind(60, [
        ("{s} is {a} metres long and {b} metres wide. What are its area and its perimeter?", "b=4-15 r=2-12 a=b+r"),
        ("{n} puts a border of stones around {s} that measures {a} by {b} metres. A metre of it costs ${c}. "
         "What is the total cost?",
         "a=8-30 b=5-20 c=6-18"),
        ("The perimeter of {s} is {e} metres, and it is {a} metres long. How wide is it?",
         "b=4-15 r=2-12 a=b+r t=a+b e=t*2"),
        ("Tiles of half a metre by half a metre are to cover {s} of {a} by {b} metres. How many tiles are needed?",
         "a=4-14 b=3-9"),
        ("The length of {s} is {b} times its width, and its width is {a} metres. Find the area.", "a=4-15 b=2-4"),
        ("{s} has an area of {c} square metres. {n} uses {a} percent of it. How many square metres are not used?",
         "c=60-400/20 a=15-80/5"),
        ("In a plan with a scale of 1 to {c}, {s} is {a} centimetres long. How long is it in reality, in metres?",
         "c=100-500/100 a=4-18"),
        ("A path one metre wide runs around {s} of {a} by {b} metres. What is the area of the path?", "a=8-20 b=5-12"),
    ], [
        "a vegetable garden", "a car park", "a classroom", "a playground", "a rectangular field", "a kitchen floor",
        "a chicken run", "a swimming pool", "a terrace", "a storage hall", "a sports ground", "a living room",
        "a rose bed"]),
    Kind(50, [
        ("{n} earns ${a} an hour for {s}. Last week {n} worked {b} hours on each of {c} days. How much did {n} earn?",
         "a=9-24 b=2-7 c=3-6"),
        ("{n} needs {a} hours for {s}, and {m} needs {b} hours for the same work. How long do they need if they "
         "work together?",
         "a=3-6 b=6-12"),
        ("{n} gets ${a} for {s} and saves {b} percent of it. How many times must {n} do it to save ${c}?",
         "a=20-60/20 b=25-75/25 c=60-240/30"),
        ("For {s}, {n} charges ${a} at the start and ${b} for every hour. What does a job of {c} hours cost?",
         "a=10-40/5 b=8-25 c=2-9"),
        ("Yesterday {n} spent {a} minutes on {s}, and today {b} minutes less. How many hours is that in all?",
         "a=70-150/10 b=10-50/10"),
        ("{n} made ${c} by {s} for {a} weeks. At this rate, how much will {n} make in {b} weeks?",
         "a=2-6 k=40-120/10 c=a*k b=7-20"),
    ], [
        "walking dogs", "mowing lawns", "washing cars", "babysitting", "painting fences", "delivering flyers",
        "teaching piano", "repairing bicycles", "picking apples", "cleaning windows", "tutoring pupils"]),
    Kind(40, [
        ("{s} holds {c} litres. Water flows in at {a} litres a minute. How long does it take to fill it from empty?",
         "a=5-25 b=6-30 c=a*b"),
        ("{s} is {a} percent full and contains {d} litres. How much does it hold when it is full?",
         "a=20-80/20 k=2-9 d=a*k"),
        ("{s} loses {a} millilitres an hour through a crack. How many litres does it lose in {b} days?",
         "a=50-400/50 b=2-10"),
        ("{n} pours {a} litres out of {s} of {c} litres and shares the rest equally among {b} buckets. How much "
         "is in each?",
         "a=5-30/5 b=4-8 k=3-9 d=b*k c=d+a"),
        ("{s} is filled by two pipes at {a} and {b} litres a minute, and {c} litres a minute run out. "
         "How many litres are in it after {d} minutes?", "a=8-20 b=6-15 c=2-5 d=10-40/5"),
        ("A pump empties {s} of {c} litres in {b} hours. How many litres does it move each minute?",
         "a=2-15 b=2-5 q=60*a c=q*b"),
    ], [
        "a water tank", "a bathtub", "an oil drum", "a fish pond", "a rain barrel", "a milk tank", "an aquarium",
        "a paddling pool"]),
    Kind(50, [
        ("{a} people come to {s}. A ticket costs ${b} for adults and ${c} for children, and {d} of the people "
         "are children. "
         "How much money is taken?", "a=80-300/20 c=2-6 r=2-8 b=c+r d=20-70/5"),
        ("At {s}, {a} percent of the {b} visitors are students. How many visitors are not students?",
         "a=10-65/5 b=200-900/100"),
        ("{n} puts chairs out for {s}: {a} rows of {b} chairs, and {c} more at the back. If {d} people come, "
         "how many chairs stay empty?",
         "a=8-15 b=10-16 c=4-20 d=60-80"),
        ("Half of the people at {s} leave before nine, and a third of the rest leave before ten. {a} people are left. "
         "How many were there at the start?", "k=6-40 a=k*2"),
        ("{a} people meet at {s}, and each of them shakes hands once with everybody else. How many handshakes "
         "are there?", "a=4-14"),
        ("It costs ${a} to organise {s}. With tickets at ${b}, how many must be sold to make a profit of ${c}?",
         "a=200-900/100 b=5-20/5 c=100-400/100"),
        ("In three years {s} had {a}, {b} and {c} guests. What was the average number of guests a year?",
         "a=90-180/30 b=120-300/30 c=150-330/30"),
    ], [
        "a school play", "a village fair", "a chess tournament", "a charity run", "a jazz concert", "a flower show",
        "a film night", "a football cup", "a book market", "a science evening"]),
    Kind(32, [
        ("{n} is {a} years old, and {s} is {b} times as old. How old will {s} be in {c} years?", "a=4-14 b=2-4 c=3-15"),
        ("The sum of the ages of {n} and {s} is {t}. {s} is {a} years older. How old is {n}?",
         "k=6-20 a=2-20/2 e=k*2 t=e+a"),
        ("In {c} years {s} will be twice as old as {n}, who is {a} today. How old is {s} now?", "a=8-20 c=2-7"),
        ("{n} is {a} centimetres tall. {s} is {b} percent taller. How tall is {s}? Round to a whole number.",
         "a=100-150/10 b=5-30/5"),
        ("Today {n}, {m} and {s} have an average age of {a}. {n} is {b} and {m} is {c}. How old is {s}?",
         "a=18-30 b=8-16 c=10-20"),
    ], [
        "the older brother", "the aunt", "the teacher", "the father", "the neighbour", "the cousin", "the coach",
        "the grandmother"]),
]

MATHS_EVAL = [
    Kind(7, [
        ("A parcel with {c} {s} weighs {d} grams; the empty carton weighs {e} grams. Find the weight of a single one.",
         "c=4-12 k=20-90/10 t=c*k e=50-200/50 d=t+e"),
        ("Every third of {n}'s {a} {s} is blue, and the others are white. Count the white ones.", "k=7-25 a=k*3"),
        ("During a sale, whoever pays for two {s} receives a third one free. One piece is ${b}. What will {n} "
         "spend to obtain {a}?",
         "k=2-6 a=k*3 b=4-15"),
        ("Starting with {a} {s}, {n} doubles the collection each month. After which month does it first exceed {b}?",
         "a=3-9 b=200-900/100"),
        ("{n} swaps {s} with {m} at a rate of {a} for {b}. How many does {m} hand over in return for {c}?",
         "a=2-4 b=5-9 k=3-8 c=a*k"),
        ("A wholesaler wants ${a} per dozen {s}. Including {b} percent tax, what is the bill for {c} dozen?",
         "a=10-40/10 b=5-20/5 c=3-9"),
        ("Between them {n} and {m} own {t} {s}; {n}'s share is {a} smaller than {m}'s. State both shares.",
         "k=10-40 a=2-16/2 e=k*2 t=e+a"),
    ], ["marbles", "buttons", "teapots", "ribbons", "magnets", "lanterns", "cushions"]),
    Kind(6, [
        ("One batch of {a} {s} takes {b} minutes to prepare. {n} handles one batch at a time. How many minutes "
         "until {c} are ready?",
         "a=6-12 b=12-20 k=3-6 c=a*k"),
        ("A squirrel hides {a} {s} on day one and {b} more than the day before on every day after that. What is "
         "the total after five days?",
         "a=3-9 b=2-5"),
        ("{n} tasted {a} out of {b} {s}. Write that as a fraction in lowest terms and as a percentage.",
         "a=6-18/6 b=24-72/12"),
        ("Mixing {a} sweet and {b} sour {s} in a jar, {n} grabs one blindly. How likely is a sour one?",
         "a=4-15 b=3-9"),
        ("If {a} children got {b} {s} each, {c} would be missing. How many are available?", "a=6-12 b=4-8 c=1-5"),
        ("{n} counts {a} {s} and notices that the number is {b} below four times what {m} counted. What did {m} count?",
         "k=8-20 e=k*4 b=3-9 a=e-b"),
    ], ["hazelnuts", "raspberries", "pretzels", "waffles", "figs", "pears"]),
    Kind(5, [
        ("Racing over {a} laps of {b} metres, {s} finishes in {c} minutes. Express its pace in metres per minute.",
         "b=200-800/200 c=4-10 k=2-6 a=c*k"),
        ("Fully charged, {s} manages {a} kilometres. After {b} kilometres, which percentage of the charge is left?",
         "a=40-100/20 b=8-32/4"),
        ("Facing headwind, {s} needs {a} percent longer than the usual {b} minutes. Give the duration.",
         "a=10-50/10 b=20-80/10"),
        ("{n} rents {s}: ${a} basic fee plus {b} cents per minute. The bill shows ${c}. How many minutes was it?",
         "a=1-4 b=20-50/10 c=9-19"),
        ("Hanging from a crane, {s} is lowered {a} metres every {b} seconds. What height does it lose within "
         "two minutes?",
         "a=3-12 b=4-12/4"),
    ], ["an electric scooter", "a hot-air balloon", "a go-kart", "a sailing dinghy", "a toboggan"]),
    Kind(5, [
        ("{n} cuts the largest possible circle out of {s} with sides of {a} centimetres. Roughly which share of "
         "it is wasted?",
         "a=10-40/10"),
        ("Doubling both sides of {s} adds {d} square centimetres. Calculate the original area.", "k=20-90/5 d=k*3"),
        ("Glue {a} copies of {s}, each {b} centimetres thick, on top of each other. Will the pile exceed one metre?",
         "a=12-30 b=3-6"),
        ("The diagonal of {s} splits it into two triangles of {a} square centimetres. If one side has {b} centimetres, "
         "how long is its neighbour?", "b=6-12 k=4-9 a=b*k"),
        ("From {s} measuring {a} by {b} centimetres, {n} trims a strip of two centimetres off all four edges. "
         "What dimensions result?", "a=30-60/5 b=20-28"),
    ], ["a sheet of cardboard", "a wooden board", "a mirror", "a square of felt", "a slab of marble"]),
    Kind(4, [
        ("As {s}, {n} receives a monthly wage of ${a}, of which {b} percent goes to rent and ${c} to meals. "
         "What stays?",
         "a=1500-3000/500 b=30-45/5 c=300-500/50"),
        ("{n} trains to become {s}: {a} lessons of {b} minutes. Convert the total to hours and minutes.",
         "a=13-29 b=35-55/5"),
        ("Three shifts of {s} produce {a}, {b} and {c} reports. Which shift lies nearest to the mean?",
         "a=12-20 b=21-33 c=34-50"),
        ("Working as {s}, {n} finished two fifths of {t} cases by noon. How many are pending?", "k=5-18 t=k*5"),
    ], ["a translator", "a lifeguard", "a bookkeeper", "a customs officer"]),
    Kind(3, [
        ("Rolling two dice while waiting for {s}, {n} hopes for a sum of {a}. Which combinations work?", "a=4-10"),
        ("The countdown to {s} shows {a} hours. Say it in days and hours.", "a=50-190"),
        ("Seats at {s} are numbered from {a} to {b}, both included. How many seats exist?", "a=14-40 r=30-90 b=a+r"),
    ], ["a rocket launch", "the opera premiere", "a magic performance"]),
]

CODE_TRAIN = [
    Kind(168, [
        "Write a Python function that {s}.",
        "Please write a small Python function that {s}, with a docstring and one example call.",
        "How can I write Python code that {s} without using any library?",
        "I need a Python function with type hints that {s}. Explain it in two sentences afterwards.",
        "In Python, show me a simple way to write a function that {s}, and then a shorter way.",
        "Write a Python function that {s}, and raise a ValueError when the input makes no sense.",
        "Write two or three assert statements first, and then a Python function that {s}.",
        "My homework is a Python program that {s}. Give me the code with comments.",
        "Write a JavaScript function that {s}, and show how to call it.",
        "Is there a common mistake when people write a Python function that {s}? Show the correct code.",
    ], [
        "counts the vowels in a string", "returns the second largest number in a list",
        "checks whether a word is a palindrome",
        "removes duplicates from a list and keeps the order", "converts degrees Celsius to Fahrenheit",
        "finds the longest word in a sentence", "merges two sorted lists into one",
        "adds up the digits of a whole number",
        "checks whether a number is prime", "reverses the words of a sentence", "computes the factorial of a number",
        "returns the first n Fibonacci numbers", "groups a list of words by their first letter",
        "counts how often each character occurs", "flattens a list of lists", "rotates a list by k places",
        "finds the common elements of two lists", "turns a list of pairs into a dictionary",
        "decides whether a year is a leap year", "converts a number of seconds to hours, minutes and seconds",
        "splits a list into chunks of a given size", "checks whether two words are anagrams",
        "replaces every space in a text by an underscore", "returns the median of a list of numbers",
        "capitalises the first letter of each word", "computes the greatest common divisor of two numbers",
        "converts a whole number to binary as a string", "converts a Roman numeral to a number",
        "checks whether the brackets in a text are balanced", "sorts a list of names by length",
        "finds the missing number in a list from 1 to n", "multiplies two matrices given as lists of lists",
        "shuffles a deck of cards and deals five of them", "validates that a password is long enough and has a digit",
        "computes the distance between two points", "finds all the even numbers in a list",
        "returns the running total of a list of numbers", "encodes a text with a Caesar shift",
        "compresses repeated letters, so that aaab becomes a3b1", "finds the index of the smallest item in a list",
        "prints a multiplication table of a given size", "swaps the keys and the values of a dictionary"]),
    Kind(66, [
        "Explain what this Python code does, line by line.\n\n{text}",
        "What does this code print, and why?\n\n{text}",
        "Can you rewrite this code so that it is easier to read? Keep the behaviour the same.\n\n{text}",
        "Add comments and a docstring to this Python code for a new colleague.\n\n{text}",
        "What is the running time of this code, and could it be made faster?\n\n{text}",
        "I found this in an old project about {s}. What is it for, and what could go wrong with it?\n\n{text}",
        "Write three unit tests with pytest for the following code.\n\n{text}",
    ], {
        "word counts": (
            "def f(text):\n    d = {}\n    for w in text.split():\n        d[w] = d.get(w, 0) + 1\n    return "
            "d\n\nprint(f('a b a'))"),
        "filtering": (
            "def keep(items, low):\n    out = []\n    for x in items:\n        if x > low:\n            "
            "out.append(x * 2)\n    return out\n\nprint(keep([1, 5, 3], 2))"),
        "a countdown": (
            "def countdown(n):\n    while n > 0:\n        print(n)\n        n -= 1\n    "
            "print('go')\n\ncountdown(3)"),
        "recursion": "def g(n):\n    if n <= 1:\n        return n\n    return g(n - 1) + g(n - 2)\n\nprint(g(7))",
        "generators": "def squares(n):\n    for i in range(n):\n        yield i * i\n\nprint(sum(squares(4)))",
        "searching": (
            "def find(a, x):\n    lo, hi = 0, len(a)\n    while lo < hi:\n        mid = (lo + hi) // 2\n        "
            "if a[mid] < x:\n            lo = mid + 1\n        else:\n            hi = mid\n    return "
            "lo\n\nprint(find([2, 4, 9], 5))"),
        "slices": "letters = list('abcdef')\nprint(letters[1:4])\nprint(letters[::-1])\nprint(letters[-2:])",
        "bank accounts": (
            "class Account:\n    def __init__(self, owner):\n        self.owner = owner\n        self.balance = "
            "0\n\n    def deposit(self, amount):\n        self.balance += amount\n        return "
            "self.balance\n\nprint(Account('Eva').deposit(20))"),
        "reading files": (
            "def read_numbers(path):\n    with open(path) as file:\n        return [float(line) for line in "
            "file if line.strip()]\n\nprint(max(read_numbers('data.txt')))"),
        "sorting": (
            "people = [('Ann', 31), ('Bob', 25), ('Cleo', 31)]\npeople.sort(key=lambda p: (-p[1], "
            "p[0]))\nprint(people)"),
        "nested loops": "for i in range(1, 4):\n    for j in range(1, 4):\n        print(i * j, end=' ')\n    print()",
        "errors": (
            "def parse(text):\n    try:\n        return int(text)\n    except ValueError:\n        return "
            "None\n\nprint([parse(t) for t in ['1', 'x', '3']])"),
        "sets": "a = {1, 2, 3}\nb = {3, 4}\nprint(a | b)\nprint(a & b)\nprint(a - b)",
        "caching": (
            "cache = {}\n\ndef slow_square(n):\n    if n not in cache:\n        cache[n] = n * n\n    return "
            "cache[n]\n\nprint(slow_square(4), slow_square(4))")}),
    Kind(62, [
        "This Python function should {s}, but it gives a wrong result. Find the bug and fix it.\n\n{text}",
        "Why does my code fail? It is supposed to {s}.\n\n{text}",
        "Please review this code. The goal is to {s}. Point out the mistake and show the corrected version.\n\n{text}",
        "I am learning Python and cannot get this to {s}. Which line is wrong?\n\n{text}",
        "Fix the following code and explain the mistake in one sentence. It has to {s}.\n\n{text}",
        (
            "My test fails for this function, which ought to {s}. Correct it, and add a check for an empty "
            "input.\n\n{text}"),
    ], {
        "return the average of a list": (
            "def average(values):\n    total = 0\n    for v in values:\n        total = v\n    return total / "
            "len(values)"),
        "add an item to a new list each time": "def add(item, items=[]):\n    items.append(item)\n    return items",
        "count down from n to 1": "def down(n):\n    for i in range(n, 0):\n        print(i)",
        "find the largest number": (
            "def largest(numbers):\n    best = 0\n    for x in numbers:\n        if x > best:\n            best "
            "= x\n    return best"),
        "greet a user by name and age": "def greet(name, age):\n    return 'Hello ' + name + ', you are ' + age",
        "remove all negative numbers": (
            "def clean(numbers):\n    for x in numbers:\n        if x < 0:\n            numbers.remove(x)\n    "
            "return numbers"),
        "tell whether a number is even": "def is_even(n):\n    if n % 2 = 0:\n        return True\n    return False",
        "return the last element of a list": "def last(items):\n    return items[len(items)]",
        "join words with commas": (
            "def join(words):\n    text = ''\n    for w in words:\n        text + w + ', '\n    return text"),
        "compute the area of a circle": "def area(radius):\n    import math\n    return math.pi * radius ^ 2",
        "ask for a number and double it": "def double():\n    n = input('Number: ')\n    print('Double:', n * 2)",
        "look up a price and use 0 if it is unknown": (
            "prices = {'tea': 2}\n\ndef price(name):\n    return prices[name]"),
        "reverse a string": (
            "def reverse(text):\n    result = ''\n    for c in text:\n        result = result + c\n    return "
            "result")}),
    Kind(70, [
        "Write a SQL query that shows {s}. The table is called {text}",
        "I have a table {text} How do I get {s} with SQL?",
        "Give me a SQL statement for {s}, and explain each clause. Table: {text}",
        "I often ask for {s} on the table {text} Which index would help? Show the query as well.",
        "Write a query for {s} in SQLite and show what the output might look like. Use the table {text}",
    ], {
        "the ten most expensive products": "products(id, name, price, category).",
        "the number of orders for each customer": "orders(id, customer_id, total, created_at).",
        "the customers without any order": "customers(id, name, city), next to orders(id, customer_id, total).",
        "the average salary of each department": "employees(id, name, department, salary).",
        "all books published after 2010 by a given author": "books(id, title, author, year).",
        "the total sales of each month": "sales(id, amount, sold_on).",
        "the names that occur more than once": "members(id, name, email).",
        "the latest login of every user": "logins(id, user_id, logged_in_at).",
        "all students whose grade is above the average": "students(id, name, grade).",
        "the share of cancelled bookings": "bookings(id, room, status, booked_on).",
        "the three cities with the most shops": "shops(id, name, city).",
        "every film together with its director": "films(id, title, director_id), next to directors(id, name).",
        "the articles that were never read": "articles(id, title, views).",
        "the tasks that are overdue and still open": "tasks(id, title, due_on, done).",
        "the longest flight of each airline": "flights(id, airline, distance_km)."}),
    Kind(64, [
        "Write a shell command that {s}, and explain every option.",
        "Is there something on the Linux command line that {s}? Show me how to use it.",
        "Write a short bash script that {s}. It should stop when something fails.",
        "I am new to the terminal. Which command {s}, and is there any risk?",
        "Give me a one-line command that {s}, and a safer version that only shows what it would do.",
    ], [
        "lists the ten largest files in a folder", "deletes empty folders", "renames all .txt files to .md",
        "counts the lines of all Python files", "finds files changed in the last two days",
        "copies a folder to another server",
        "shows how much disk space is left", "searches for a word in all files below a folder",
        "makes a dated archive of a folder",
        "shows which process uses a port", "prints the third column of a CSV file",
        "replaces one word by another in many files",
        "watches a log file for errors", "sorts a file and removes repeated lines",
        "downloads a file and checks its hash"]),
    Kind(70, [
        "What is {s} in Python? Show a short example and explain it.",
        "When should I use {s} in Python, and when should I not?",
        "Explain {s} to somebody who knows only loops and if statements.",
        "Give me a small exercise about {s} in Python, and then its solution.",
        "I always forget how {s} works in Python. Make me a cheat sheet with four examples.",
        "What mistakes do beginners make with {s} in Python? Show one wrong and one right example.",
        "How would you explain {s} in a code review comment of at most 80 words?",
    ], [
        "a list comprehension", "a decorator", "a generator", "a lambda function", "exception handling",
        "a context manager",
        "a dataclass", "a default argument", "inheritance", "string formatting", "slicing", "a virtual environment",
        "the enumerate function", "the zip function", "unpacking", "a global variable", "mutability", "a named tuple"]),
]

CODE_EVAL = [
    Kind(9, [
        "Implement `solve` in Python: it {s}. No explanation required.",
        "Could you code something for me that {s}? Python 3.12, please.",
        "Sketch pseudocode first, followed by real Python, for a routine that {s}.",
        "As a kata: build a Python class whose single method {s}.",
        "Here is the specification: the program {s}. Produce it using recursion.",
        "Ruby or Python, your choice, yet it must be short: code that {s}.",
        "Demonstrate in Python how one {s}; avoid `for` entirely.",
        "Interview question: given any input, create code which {s}. Discuss edge cases.",
        "Extend Python's standard toolbox by a helper that {s}, then benchmark it with timeit.",
    ], [
        "interleaves three tuples", "draws a triangle out of asterisks", "strips HTML tags off a paragraph",
        "parses a query string such as a=1&b=2", "transposes a grid", "estimates pi by throwing random darts",
        "simulates a traffic light", "validates a credit card number by the Luhn rule",
        "spells integers below one hundred"]),
    Kind(6, [
        "Trace the variables of the snippet below in a table.\n\n{text}",
        "Port the following Python to TypeScript.\n\n{text}",
        "Is there dead code here? Justify.\n\n{text}",
        "Suggest better names for everything in this {s} snippet.\n\n{text}",
        "Turn this into a command-line tool using argparse.\n\n{text}",
        "Summarise the purpose of this fragment in a commit message.\n\n{text}",
    ], {
        "stack": (
            "s = []\nfor ch in '3 4 + 2 *'.split():\n    if ch.isdigit():\n        s.append(int(ch))\n    elif "
            "ch == '+':\n        s.append(s.pop() + s.pop())\n    else:\n        s.append(s.pop() * "
            "s.pop())\nprint(s)"),
        "temperature log": (
            "log = [21.5, 19.0, 23.5]\ndiffs = [b - a for a, b in zip(log, log[1:])]\nif len(log) < 0:\n    "
            "print('never')\nprint(diffs)"),
        "dice": (
            "import random\n\nrolls = [random.randint(1, 6) for _ in range(100)]\nprint(rolls.count(6) / "
            "len(rolls))"),
        "menu": (
            "choice = None\nwhile choice != 'q':\n    choice = input('a)dd, l)ist, q)uit: ')\n    if choice == "
            "'a':\n        print('adding')"),
        "polynomial": (
            "def p(coefs, x):\n    y = 0\n    for c in coefs:\n        y = y * x + c\n    return "
            "y\n\nprint(p([2, 0, 1], 3))"),
        "elapsed time": (
            "from datetime import date\n\nborn = date(1990, 5, 17)\ntoday = date(2024, 2, 1)\nprint((today - "
            "born).days // 365)")}),
    Kind(4, [
        "Debug: users report that it does not {s}. Patch attached code.\n\n{text}",
        "We hoped to {s}. Spot the defect and name the lesson learnt.\n\n{text}",
        "Somebody wrote this to {s}. Under which inputs does it break?\n\n{text}",
        "Here is a puzzle: a tiny edit would let us {s}. Where?\n\n{text}",
    ], {
        "skip weekends": "def workdays(days):\n    return [d for d in days if d != 'Sat' or d != 'Sun']",
        "halve a budget": "def halve(budget):\n    budget / 2\n\nprint(halve(90))",
        "stop at midnight": "hour = 20\nwhile hour != 24:\n    hour += 3\nprint('midnight')",
        "pick a winner fairly": (
            "import random\n\ndef winner(names):\n    return names[random.randint(0, len(names))]")}),
    Kind(4, [
        "Using window functions where sensible, retrieve {s}; schema: {text}",
        "Translate into SQL: {s}. Schema: {text}",
        "PostgreSQL, please: {s}, given {text}",
        "Would a subquery or a join be preferable to obtain {s}? Schema: {text}",
    ], {
        "patients seen by at least two doctors": "visits(patient, doctor, day).",
        "a ranking of players by score within their league": "players(nick, league, score).",
        "gaps of a week or more between deliveries": "deliveries(truck, arrived).",
        "recipes lacking garlic": "recipes(dish), ingredients(dish, item)."}),
    Kind(4, [
        "From a zsh prompt, which incantation {s}? Dissect it afterwards.",
        "Craft a Makefile target which {s}, plus its help line.",
        "Suppose cron runs nightly; add an entry that {s}.",
        "PowerShell is foreign to me. Show its equivalent of a script that {s}.",
    ], ["resizes every photograph", "mutes the speakers at dusk", "pings a router until it replies",
        "rotates old backups"]),
    Kind(3, [
        "Argue for and against {s} in front of experienced programmers.",
        "Illustrate {s} with an analogy taken from cooking, followed by code.",
        "Which version of Python introduced {s}, and what did people do beforehand?",
    ], ["duck typing", "structural pattern matching", "the walrus operator"]),
]

REWRITING_TRAIN = [
    Kind(216, [
        "Summarise this text in two sentences.\n\n{text}",
        "Rewrite the following passage in simpler words for a child.\n\n{text}",
        "Turn this text into a list of bullet points.\n\n{text}",
        "Write a headline and one short sentence for the text below.\n\n{text}",
        "Shorten this passage to half its length and keep all the important facts.\n\n{text}",
        "List every number in this text and say what it stands for.\n\n{text}",
        "What is the main point of the passage? Answer in at most 25 words.\n\n{text}",
        "Rewrite this passage about {s} as a dialogue between a teacher and a pupil.\n\n{text}",
        "Write three questions that this text answers, each with its answer.\n\n{text}",
        "Make this text about {s} sound more exciting, as in an advertisement.\n\n{text}",
        "Put the facts of this passage into a table with two columns.\n\n{text}",
        "Rewrite the text in the style of a radio news report.\n\n{text}",
        "Find five key words in this text and explain each in a few words.\n\n{text}",
        "Change this text so that every sentence has fewer than ten words.\n\n{text}",
        "Paraphrase the passage below without reusing its longer phrases.\n\n{text}",
        "Write a short summary of this text about {s} for a school magazine.\n\n{text}",
    ], {
        "bees": (
            "A honey bee visits between fifty and a hundred flowers on a single trip. Back in the hive it "
            "dances to tell the others where the best flowers are. The angle of the dance shows the direction, "
            "and its length shows the distance. A hive of forty thousand bees can make about thirty kilograms "
            "of honey in a good year."),
        "the Sahara": (
            "The Sahara is almost as large as the United States, but only a quarter of it is covered with sand. "
            "The rest is gravel, bare rock and dry valleys. Days can be hotter than forty-five degrees, while "
            "winter nights may fall below zero. About two million people live there, most of them near wells "
            "and oases."),
        "early bicycles": (
            "The first bicycles had no pedals; riders pushed themselves along with their feet. In the 1860s "
            "pedals were fixed to the front wheel, which soon grew very large so that each turn went further. "
            "These high machines were fast but dangerous. Around 1885 the chain drive arrived, and two wheels "
            "of equal size became normal."),
        "sleep": (
            "Adults need between seven and nine hours of sleep, although few people get that much during the "
            "week. While we sleep the brain sorts the memories of the day and clears away waste. A regular "
            "bedtime, a dark room and less coffee after lunch help more than sleeping late on Sundays, which "
            "often makes Monday worse."),
        "a town library": (
            "The town library opened again on Monday after fourteen months of building work. It now has a "
            "reading garden, a quiet floor for students and a workshop with sewing machines that anyone may "
            "use. The work cost three million euros, slightly less than planned. In the first two days more "
            "than nine hundred visitors came."),
        "octopuses": (
            "An octopus has three hearts, blue blood and eight arms that can taste what they touch. Two thirds "
            "of its nerve cells are in the arms, so each arm can solve small problems by itself. Octopuses open "
            "jars, escape from tanks and change their colour in less than a second. Most of them live for only "
            "two years."),
        "chocolate": (
            "Cocoa trees grow only in warm, wet countries close to the equator. Each pod holds about forty "
            "beans, which are left to ferment for a week and then dried in the sun. Factories roast and grind "
            "them into a thick paste. It takes roughly four hundred beans to make half a kilogram of dark "
            "chocolate."),
        "a new tram line": (
            "The city council has agreed to build a tram line between the station and the hospital. Work will "
            "start in March and should take three years. The line will have eleven stops, and trams will run "
            "every eight minutes. Shopkeepers on Mill Street fear that they will lose customers while the "
            "street is closed."),
        "volcanoes": (
            "A volcano forms where melted rock finds a way through the crust of the Earth. Some pour out lava "
            "slowly, so that people can walk away from it. Others are blocked by thick rock until the pressure "
            "becomes too great and they explode. Ash from large eruptions can cool the whole planet for a year "
            "or two."),
        "school lunches": (
            "A study followed two thousand pupils at thirty schools for one year. Half of the schools moved "
            "lunch to an earlier hour and served more vegetables. At those schools pupils threw away a third "
            "less food and said they were less tired in the afternoon. Marks did not change. The authors would "
            "like to repeat the study with older pupils."),
        "paper": (
            "Paper was invented in China about two thousand years ago. The first sheets were made of bark, old "
            "rags and fishing nets, beaten to a pulp and dried on frames. The craft reached the Arab world in "
            "the eighth century and Europe four hundred years later. Wood was not used on a large scale until "
            "the nineteenth century."),
        "electric buses": (
            "Our city now runs sixty electric buses, a quarter of the whole fleet. They are quieter than the "
            "diesel ones and cost half as much per kilometre. In very cold weather, however, they travel only "
            "two thirds of the usual distance, because heating takes so much energy. Drivers say that they are "
            "easier to handle in traffic."),
        "penguins": (
            "Emperor penguins lay their eggs in the middle of the Antarctic winter. The mother goes back to the "
            "sea for two months, while the father keeps the egg warm on his feet. Thousands of fathers stand "
            "close together and take turns in the middle of the crowd. By the time the chick hatches they have "
            "lost almost half their weight."),
        "coffee": (
            "Legend says that a goatherd in Ethiopia discovered coffee when his goats danced after eating red "
            "berries. By the fifteenth century it was grown in Yemen, and a hundred years later coffee houses "
            "stood in every large city of the region. People met there to hear news, play chess and talk "
            "politics, which worried several rulers."),
        "the Moon": (
            "The Moon always shows us the same side, because it turns once in exactly the time that it needs to "
            "go around the Earth. It has no air, so footprints left there fifty years ago look fresh. Every "
            "year it moves away from us by almost four centimetres, about as fast as fingernails grow."),
        "a small museum": (
            "The button museum fills two rooms above a bakery. Its owner, a former tailor, began to collect as "
            "a boy and now shows more than nine thousand buttons made of bone, glass, silver and even potato "
            "starch. Entry is free, but visitors are asked to bring a button and tell the story that belongs to "
            "it."),
        "rice": (
            "Rice feeds more than half of the people in the world. Most of it is grown in flooded fields, where "
            "the water keeps weeds away. A farmer needs up to three thousand litres of water to grow one "
            "kilogram. New ways of planting, with fields that are allowed to dry from time to time, use a third "
            "less."),
        "lighthouses": (
            "Before electricity, lighthouse keepers burned wood, coal or whale oil and had to watch the flame "
            "all night. In 1822 a French engineer designed a lens made of many rings of glass, which sent the "
            "light more than thirty kilometres out to sea. Today almost all lighthouses work by themselves, and "
            "some have become small hotels."),
        "walking": (
            "Doctors who followed eight thousand adults found that a daily walk of twenty minutes lowered the "
            "risk of heart disease by almost a fifth. Speed mattered less than regularity. Those who walked "
            "with a friend were twice as likely to continue after a year. The researchers advise people to fix "
            "a time of day and keep to it."),
        "glass": (
            "Glass is made by melting sand together with soda and lime at about fifteen hundred degrees. The "
            "hot liquid can be blown, pressed or poured onto a bath of melted tin, which makes perfectly flat "
            "windows. Old bottles melt at a lower temperature than sand, so every bottle that is recycled saves "
            "energy as well as material."),
        "migrating birds": (
            "Each autumn billions of birds fly south. They find their way by the sun, the stars and the "
            "magnetic field of the Earth. The Arctic tern flies the furthest, about seventy thousand kilometres "
            "a year, from one pole to the other and back. Young birds of some kinds make the first journey "
            "without their parents."),
        "a flood": (
            "After three days of rain the river rose by two metres on Thursday night and entered about forty "
            "houses in the lower town. Firefighters brought sixty people to the sports hall, where volunteers "
            "served soup and tea. Nobody was hurt. The water began to fall on Friday, but the old bridge will "
            "stay closed until engineers have checked it."),
        "chess": (
            "Chess began in India in about the sixth century and travelled through Persia to Europe. The queen "
            "was once the weakest piece and could move only one square. Around 1475 she was given the power "
            "that she has today, and games became much quicker. After only four moves by each player there are "
            "billions of possible positions."),
        "an office move": (
            "In spring the company will leave its building in the centre and move to a former textile mill by "
            "the canal. The rent is a third lower and there is space for two hundred bicycles. For most of the "
            "staff the way to work will be ten minutes longer. A free shuttle bus will run from the station "
            "during the first year."),
        "soap": (
            "Soap works because its molecules have two different ends. One end likes water, and the other one "
            "likes fat. When we wash our hands the molecules surround tiny drops of grease and carry them away "
            "with the water. The ancient Babylonians boiled fat with ashes to make soap more than four thousand "
            "years ago."),
        "a music school": (
            "The music school has 320 pupils between five and eighty years of age. Most of them learn the piano "
            "or the guitar, but lessons for the bassoon and the harp are free because so few people choose "
            "them. Every summer the teachers and pupils play on a boat that travels slowly through the town."),
        "maps": (
            "Every flat map of the world is wrong in some way, because the surface of a ball cannot be laid "
            "flat without stretching it. On the maps that sailors used, Greenland looks as large as Africa, "
            "although Africa is fourteen times bigger. Other maps keep the areas right but bend the shapes of "
            "the continents."),
        "urban gardens": (
            "On the roof of a car park in our district, forty families grow vegetables in wooden boxes. They "
            "share tools, a water tank and a compost heap. Last year they harvested almost two tonnes of food. "
            "Bees from three hives on the same roof visit the flowers, and a school class comes every week to "
            "help."),
        "the telephone": (
            "When the telephone was new, people did not know how to begin a call. One inventor proposed the "
            "sailor's greeting ahoy, another preferred hello. Operators connected every call by hand and often "
            "knew the whole town by voice. The first automatic exchange was built by an undertaker who believed "
            "that the operator gave his calls to a rival."),
        "recycling": (
            "A town of twelve thousand people changed the way it collects rubbish. Households now pay for each "
            "bag of waste, while paper, glass and plastic are collected free of charge. Within a year the "
            "amount of waste fell by forty percent. Some people took their rubbish to the next town, which led "
            "to angry letters between the two mayors."),
        "a market hall": (
            "The old market hall will be restored next year. Architects want to open the roof so that daylight "
            "reaches the stalls, and a cellar that was filled with sand in the war will become a small theatre. "
            "The fishmongers are pleased with the plan. The owner of the flower stall fears that the rent will "
            "double."),
        "whales": (
            "Humpback whales sing songs that last up to half an hour and can be heard hundreds of kilometres "
            "away. All the males of one region sing the same song, which changes slowly from year to year. Now "
            "and then a new song arrives from another ocean, and within two seasons everybody has dropped the "
            "old one."),
        "working hours": (
            "Four companies in our region tried a week of four days for six months, without cutting pay. Three "
            "of them will keep it. Staff reported less stress, and sick leave fell by a quarter. The fourth "
            "company, a repair service, went back to five days because customers could not reach anyone on "
            "Fridays."),
        "salt": (
            "For centuries salt was so valuable that soldiers were sometimes paid with it and towns grew rich "
            "by taxing it. It kept meat and fish from going bad in the days before refrigerators. Most of it "
            "came from mines or from shallow ponds by the sea. Today more salt is spread on winter roads than "
            "on food.")}),
    Kind(160, [
        "Rewrite this message so that it sounds polite and professional.\n\n{text}",
        "Make this message friendlier without changing what it asks for.\n\n{text}",
        "This text is too long for a chat. Reduce it to at most 30 words.\n\n{text}",
        "Extract the date, the place and the people from this message.\n\n{text}",
        "Turn this note into a formal letter with a greeting and a closing.\n\n{text}",
        "Write a short reply to this message that agrees to everything.\n\n{text}",
        "Write a reply to this message that says no in a kind way.\n\n{text}",
        "What does the writer want, and by when? Answer in one sentence.\n\n{text}",
        "Rewrite the message so that it sounds calm instead of angry or worried.\n\n{text}",
        "List the tasks in this message as a to-do list.\n\n{text}",
        "Add a clear subject line and rewrite the message in three short paragraphs.\n\n{text}",
        "Rewrite this message about {s} as if it were written by a very cheerful person.\n\n{text}",
        "Correct the style of this message and remove all repetition.\n\n{text}",
        "Is this message rude, neutral or friendly? Explain, and suggest one improvement.\n\n{text}",
        "Rewrite this message in the third person, as a report for a manager.\n\n{text}",
    ], {
        "a late invoice": (
            "hi, this is the third time I write about the invoice from May. you said it would be paid in June "
            "and now it is August. I have bills too you know. the amount was 1,240 dollars and nothing has "
            "come. please just pay it this week or tell me who I have to call, because I am really tired of "
            "waiting."),
        "a team lunch": (
            "Hello everyone, so the lunch is on Thursday now and not on Wednesday because Sara is away on "
            "Wednesday. It is at the Italian place behind the station at half past twelve. Please tell me by "
            "Tuesday evening if you come and if you eat meat or not, because they need to know how many we are."),
        "a noisy workshop": (
            "Your workshop is driving us mad. The saw starts at six in the morning and goes on until night, "
            "even on Saturday. My wife works in the hospital and has to sleep during the day. We have asked you "
            "twice already. Either you start after eight, or we will complain to the housing office on Monday."),
        "a lost key": (
            "Hey Tom, I think I lost the key to the cellar, or maybe Julia has it, I am not sure. I looked in "
            "the car and in my blue coat and everywhere. Can you bring yours on Sunday when you come to dinner? "
            "And please do not tell the landlord yet, perhaps it turns up again."),
        "a delayed report": (
            "I know I promised the sales report for Friday, but the numbers from the Madrid office came only "
            "yesterday, and half of them were wrong. I need until next Wednesday. I could send you the first "
            "ten pages tomorrow if that helps, and Peter can explain the charts on the telephone. Sorry about "
            "this, it was not my plan."),
        "a school trip": (
            "Dear parents, on the 14th of June we go to the zoo with classes 3a and 3b. The bus leaves at 7:45 "
            "in front of the gym and comes back at about four. The children need a packed lunch, a rain jacket "
            "and six euros for the boat. Two more parents are needed to help, please write to Mrs Keller."),
        "a broken washing machine": (
            "The washing machine that I bought from you in March is broken again. Your man came two weeks ago, "
            "stayed five minutes and said that it was fine. It is not fine, there is water all over my kitchen "
            "floor. I want a new machine or my money back, and I want an answer before the weekend."),
        "a swimming course": (
            "Hi, I saw your poster about the swimming course and I have some questions. Is it also for adults "
            "who are a bit afraid of water? I am 52. And could I come only on Tuesdays, since I work in the "
            "evening on Thursdays? What does it cost, and do I need to bring anything except a towel?"),
        "a shared printer": (
            "To whoever printed 200 pages of cat pictures this morning: the printer is for work. I had to print "
            "a contract for a client and waited forty minutes, and then there was no paper left. Please use the "
            "one on the second floor for private things, and fill up the paper afterwards. It is not that "
            "difficult."),
        "a holiday request": (
            "Hello Mr Brandt, I would like to take two weeks off in September, from the 9th to the 20th, as my "
            "sister is getting married in Greece. Nadia has agreed to look after my customers, and I will "
            "finish the price list before I go. I know it is a busy month, so please tell me soon if there is a "
            "problem."),
        "a wrong order": (
            "I ordered three green curtains and got two green ones and a brown one. On the bill it says three "
            "green. I called your number four times and always heard music. Please send the green one quickly, "
            "because my guests come on the 3rd of October, and tell me what I should do with the brown one. My "
            "order number is 58213."),
        "a football practice": (
            "Guys, practice is moved again, sorry. The field is under water, so we play in the hall on Maple "
            "Road on Friday at seven, and only until half past eight. Bring shoes with light soles, otherwise "
            "the caretaker will throw us out like last time. Ali has the balls. Who can give Daniel a lift?"),
        "a project meeting": (
            "The meeting yesterday was a waste of time. Nobody had read the plan, we talked for an hour about "
            "the colour of the logo, and then half of the people left. I suggest that next time we send the "
            "questions two days before, that we meet for thirty minutes, and that somebody writes down who does "
            "what."),
        "a cat sitter": (
            "Hi Lena, can you feed Momo from Friday to Tuesday? He gets half a tin in the morning and dry food "
            "at night, and fresh water please. The vet's number is on the fridge. Do not let him into the "
            "bedroom. The plants need water only once. I will bring you something nice from Rome, of course."),
        "a parking space": (
            "Somebody with a silver van has been standing on my parking space, number 17, since Monday. I pay "
            "for it every month. Yesterday I had to carry my shopping through the rain. If the van is still "
            "there tomorrow at noon, I will have it towed away, and I will not pay for that. Thank you very "
            "much."),
        "a website": (
            "So about the website, we like it in general, but the boss thinks that the letters are too small "
            "and that the blue looks like a bank. Also the page with the opening hours is wrong, since we are "
            "closed on Mondays now. Could you change it by the 20th, when the new menu starts? And what would a "
            "page in French cost?"),
        "a choir concert": (
            "Dear friends of the choir, our winter concert is on the 12th of December at six in St Anne's "
            "church. We sing songs from eight countries, and for the first time our children's group takes "
            "part. Entry is free, but we collect money for a new heating system. After the concert there is "
            "soup and bread for everybody."),
        "a piano for sale": (
            "I am selling my piano because we are moving to a smaller flat. It is black, about thirty years "
            "old, and was tuned last spring. There is one scratch on the left side, and the pedal squeaks a "
            "little. I would like 900 for it, but we can talk. You must collect it yourself from the second "
            "floor before the end of May."),
        "a job interview": (
            "Hello, thank you for inviting me on Tuesday at ten. The problem is that I have an exam on that "
            "morning which I cannot move. I am very interested in the job and could come on Tuesday after two, "
            "or at any time on Wednesday and Thursday. A video call would be possible as well. I hope that this "
            "is no trouble."),
        "a leaking roof": (
            "It is raining into our bedroom again, right next to the lamp. In November you sent somebody who "
            "put tape on it. Tape! Now there is a brown spot as big as a plate, and it smells. We pay our rent "
            "on time each month. Please send a real roofer this week and tell us on which day he will come."),
        "a language exchange": (
            "Hi! I am learning Spanish and read that you want to learn English. I am 24, I like films and "
            "cooking, and I am free on most evenings after six. We could meet in the cafe by the river or talk "
            "online, half an hour in each language. My Spanish is still quite bad, so please be patient with me."),
        "new kitchen rules": (
            "From next Monday there are new rules for the kitchen on floor 4. Everybody washes their own cup. "
            "Food without a name is thrown away on Friday at five. The person whose name is on the list empties "
            "the dishwasher in the morning. Fish may not be heated in the microwave any more. Questions go to "
            "Monica, not to me."),
        "a birthday surprise": (
            "Shh, this is secret! Grandpa turns 80 on the 6th of March and we want to surprise him in the "
            "garden restaurant at three. Everyone should bring one photograph with a story on the back. Uncle "
            "Paul picks him up and says that they will look at a car. Please be there by half past two and park "
            "behind the church."),
        "a gym complaint": (
            "I have been a member of your gym for five years, and it gets worse every month. The showers are "
            "cold, two of the running machines have been broken since January, and the music is so loud that I "
            "cannot hear my own thoughts. If nothing happens by Easter, I will leave, and three of my friends "
            "will do so too."),
        "a software update": (
            "Hi all, on Saturday between 6 and 11 in the morning we will update the booking system. During that "
            "time nobody can log in. On Monday the page will look different: the search is at the top now, and "
            "the calendar opens by itself. If something is missing, please send a picture of the screen to the "
            "help desk and do not call."),
        "a borrowed drill": (
            "Hi Frank, do you remember the drill that I lent you before Christmas? I need it back, because we "
            "are putting up shelves on Saturday. You also still have my long ladder, I believe. I could come by "
            "tomorrow after work, at about half past five. If you are not at home, just leave both in front of "
            "the garage.")}),
    Kind(124, [
        "Rewrite this story in the present tense.\n\n{text}",
        "Rewrite this scene from the point of view of another person or animal in it.\n\n{text}",
        "Continue this story with one more paragraph.\n\n{text}",
        "Give this story a title and sum it up in one sentence.\n\n{text}",
        "Rewrite the scene as a play with stage directions.\n\n{text}",
        "Describe the main character of this text in three adjectives, and give a reason for each.\n\n{text}",
        "Rewrite this story about {s} as a poem of four lines.\n\n{text}",
        "Make this scene scarier, but keep the same events.\n\n{text}",
        "Make the story funnier by changing two details.\n\n{text}",
        "In what order do things happen here? Make a numbered list.\n\n{text}",
        "Retell this in the words of a seven-year-old child.\n\n{text}",
        "Rewrite the passage as an entry in a diary.\n\n{text}",
        "What can we learn from this story? Answer in two or three sentences.\n\n{text}",
    ], {
        "a red umbrella": (
            "Every morning the old man carried a red umbrella to the station, even in the driest summer. People "
            "smiled about him. One day a storm broke just as the train arrived, and he walked from door to door "
            "until every passenger had reached the bus. Then he went home, completely wet and very pleased."),
        "a stray dog": (
            "The dog had followed Maria since the bakery. She told it to go home, but it only sat down and "
            "looked at her bag. At the corner she gave it half of her roll. It carried the bread carefully "
            "across the street, and there, under a bench, three small puppies were waiting."),
        "a power cut": (
            "When the lights went out, nobody on our floor knew what to do. Then Mr Silva knocked on every door "
            "with a candle. We carried our food to the stairs, because it would have gone bad anyway, and ate "
            "ice cream with the neighbours whom we had never met. At midnight the power came back, and some of "
            "us were sorry."),
        "a first flight": (
            "Tomas had never been on an aeroplane. He held his ticket with both hands and read the safety card "
            "twice. When the engines roared, the woman in the next seat began to cry quietly, so he told her "
            "about his chickens, one after the other, until they were above the clouds and both of them had "
            "forgotten to be afraid."),
        "a broken vase": (
            "The vase fell at ten past three. Paul and his sister glued it together piece by piece and turned "
            "the cracked side to the wall. For a week their mother said nothing. Then, on Sunday, she put fresh "
            "flowers in it without any water, and winked at them."),
        "a lost hiker": (
            "It began to snow at noon, and by two o'clock Jana could no longer see the path. She remembered "
            "what her uncle had said: follow the water. So she listened, found a little stream under the ice, "
            "and walked beside it downhill for three hours, until she smelled smoke and saw the yellow window "
            "of a hut."),
        "a chess game": (
            "The two old friends had played chess in the park every Friday for thirty years, and Victor had "
            "always won. This time he looked at the board for a long time and then laid down his king. It was "
            "years before he found out that his friend had learned the game all over again, from a book, in one "
            "winter."),
        "a night train": (
            "Somewhere after midnight the train stopped in a field. There was no station, only a man with a "
            "lantern and a goat. He climbed in, sat down opposite me and shared his cheese. At the next stop he "
            "got out and forgot the goat, which looked out of the window with great interest all the way to the "
            "coast."),
        "a school play": (
            "Mia had only one line in the play: the king is coming. She practised it for weeks, in the bath and "
            "on the bus. On the evening itself the king was ill at home. Mia looked at the full hall, took a "
            "breath and said: the king is not coming, so I will tell you the story myself."),
        "a garden wall": (
            "For twenty years the two neighbours had not spoken because of a wall. When a storm knocked it "
            "down, both of them came out with a shovel. They worked side by side without a word until evening. "
            "Then one asked where the wall should stand, and the other one said: does it have to stand at all?"),
        "a letter": (
            "The letter had been lying behind the drawer for forty years. It was addressed to a girl called "
            "Ruth, and it asked her to come to the bridge at noon on the first of May. I asked around in the "
            "village. Ruth was eighty now. She read it, laughed, and asked me what day it was."),
        "a fishing boat": (
            "They had caught nothing for five days. On the sixth the youngest fisherman threw his lunch into "
            "the sea, out of anger, and the water began to boil with silver fish. They filled the boat up to "
            "the edge. Since then, every crew in that harbour carries one sandwich more than it needs."),
        "a shy singer": (
            "Ella sang only in the lift, where nobody could hear her. She did not know that the caretaker sat "
            "in the room above it and turned off his radio each morning at eight. When she moved out, he gave "
            "her a cake. On it he had written, in crooked letters: thank you for the concerts."),
        "a snow day": (
            "The school was closed, and the hill behind the supermarket was white. We had no sledge, so we used "
            "a tray, a bin lid and the door of an old fridge. My brother steered the fridge door straight into "
            "the pond. The ice held. The fridge door is still there, and every summer a duck sits on it."),
        "a strange shop": (
            "The shop sold only single things: one glove, one chess piece, one shoe. I laughed when I saw it. "
            "Then I noticed the knight with the broken ear that had been missing from our board since I was "
            "nine. I asked the woman what it cost. She said that I should bring her something lonely in return."),
        "a marathon": (
            "At kilometre thirty-eight Rashid wanted to stop. His knees hurt and his water was gone. A woman of "
            "about seventy overtook him slowly and told him to count the trees. He counted two hundred and "
            "twelve trees, and then there was a line on the road and someone put a blanket around him."),
        "a new teacher": (
            "On his first day the new teacher wrote nothing on the board. He put a stone on the table and asked "
            "what we saw. A stone, we said. He nodded and waited. After ten minutes somebody mentioned the sea, "
            "and someone else ice and time. When the bell rang, nobody got up."),
        "an attic": (
            "In the attic stood a trunk with three locks. My grandmother had lost the keys before I was born, "
            "and she always said that it was full of winter. We opened it last week. Inside lay seven pairs of "
            "skates, wrapped in newspaper, one for each of her brothers, and a map of a lake that no longer "
            "exists."),
        "a parrot": (
            "The parrot came with the flat. It said good morning at night and good night at breakfast, and "
            "whenever the telephone rang it shouted that nobody was at home. After a month we discovered that "
            "it was telling the truth about everything else. It knew which neighbour stole the newspapers, and "
            "it was willing to talk."),
        "a ferry": (
            "The last ferry left without us, and so we sat down on the pier. A boy sold us hot corn and told us "
            "that on clear nights one could see the lights of the other side. It was not a clear night. We "
            "looked all the same, for hours, and agreed in the end that we had seen them.")}),
]

REWRITING_EVAL = [
    Kind(12, [
        "Condense what follows into a tweet.\n\n{text}",
        "Pick out cause and effect in this paragraph.\n\n{text}",
        "State one claim made below and how it could be verified.\n\n{text}",
        "Adapt the paragraph for elderly readers who dislike jargon.\n\n{text}",
        "Craft flashcards (front / back) covering these facts.\n\n{text}",
        "Remove opinions and leave bare facts.\n\n{text}",
        "Give me the gist, then the single most surprising detail.\n\n{text}",
        "Recast this as an encyclopaedia entry.\n\n{text}",
        "Output JSON with the keys topic, figures and conclusion.\n\n{text}",
        "Compose an exam question based on the material and grade a wrong response to it.\n\n{text}",
        "Rephrase using active verbs throughout.\n\n{text}",
        "Explain to a busy executive why they ought to care.\n\n{text}",
    ], {
        "bamboo": (
            "Certain species of bamboo shoot up almost a metre within twenty-four hours, which makes them the "
            "quickest growing plants known. Builders across Asia bind the hollow stems into scaffolding that "
            "bends during typhoons rather than snapping. Strangely, a whole forest may flower simultaneously, "
            "once in a century, and then die."),
        "hiccups": (
            "Hiccups start when the diaphragm tightens without warning and the vocal cords slam shut a moment "
            "later, producing the famous sound. Fizzy drinks, laughter and hurried meals are typical triggers. "
            "Most bouts fade within minutes. One American farmer, however, hiccuped continuously for "
            "sixty-eight years and still raised eight children."),
        "a vineyard": (
            "Frost destroyed eighty percent of the grapes at the Rossi estate this April. Instead of selling, "
            "the sisters who run it rented drones to blow warmer air downwards, invited tourists to prune, and "
            "launched a vinegar made from unripe fruit. Turnover dropped merely six percent, and the vinegar "
            "has since won an award."),
        "barcodes": (
            "A doodle in beach sand inspired the barcode: its inventor stretched the dots and dashes of Morse "
            "downwards into thick and thin stripes. The idea waited two decades for affordable lasers. In June "
            "1974 a cashier in Ohio scanned the first packet, chewing gum priced at sixty-seven cents, which "
            "nowadays rests in an exhibition."),
        "hedgehogs": (
            "Volunteers in Sussex cut holes, each roughly as wide as a compact disc, beneath three hundred "
            "garden fences. Hedgehogs roam up to two kilometres nightly while hunting beetles, and closed "
            "fences had trapped them. Two seasons after the project began, cameras recorded twice as many "
            "juveniles, plus several puzzled foxes."),
        "concrete": (
            "Roman harbours have endured waves for two millennia, whereas modern piers crumble after fifty "
            "years. Chemists now believe the secret is volcanic ash: seawater seeping into it grows tiny "
            "crystals that seal every crack. Cement production causes eight percent of global carbon emissions, "
            "hence the renewed enthusiasm for such ancient recipes."),
        "crosswords": (
            "Newspapers printed the first crossword just before Christmas 1913 under the title Word-Cross. A "
            "typesetter swapped the halves by mistake, and the name stuck. Critics called the craze a sinful "
            "waste; railways nevertheless placed dictionaries aboard for commuters. Psychologists still debate "
            "whether solving puzzles daily protects ageing brains."),
        "airport noise": (
            "Residents beneath the eastern flight corridor recorded decibel levels on their balconies "
            "throughout July. Peaks above eighty occurred roughly nineteen times daily, triple what the "
            "operator had published. Officials replied that cheap microphones exaggerate. An independent "
            "laboratory will calibrate the devices, and its verdict is due before the runway hearing."),
        "mushrooms": (
            "Beneath a woodland, threads of fungus connect roots of neighbouring trees. Through this web, "
            "shaded saplings obtain sugar from taller relatives, and the fungus collects a commission. "
            "Enthusiasts speak of generous mother trees. Sceptical ecologists counter that evidence remains "
            "thin, since few experiments ruled out sugar drifting through ordinary soil."),
        "denim": (
            "Miners in Nevada complained that pockets ripped under heavy ore. A tailor reinforced them using "
            "copper rivets, and lacking sixty-eight dollars for a patent, he wrote to his fabric supplier, Levi "
            "Strauss. Their joint patent was granted in 1873. Dyers chose indigo since it clings to the "
            "surface, fading attractively."),
        "saunas": (
            "Finland counts over three million saunas, meaning more saunas than cars. Diplomats negotiated "
            "treaties on those hot benches, and babies were formerly delivered there, because smoke kept the "
            "rooms sterile. Cardiologists observed that frequent bathers suffer fewer strokes, though wealthier "
            "citizens also bathe more, complicating any firm conclusion."),
        "origami": (
            "Engineers borrow folding patterns from origami. A Japanese astrophysicist devised a crease that "
            "opens an entire sheet by pulling opposite corners; satellites unfurl solar panels likewise. "
            "Surgeons test stents that travel collapsed along arteries, then blossom. The appeal lies in having "
            "neither hinges nor lubricant, therefore little that jams.")}),
    Kind(10, [
        "Soften the wording, yet keep the deadline.\n\n{text}",
        "Imagine you are a lawyer: restate the request.\n\n{text}",
        "Convert to a calendar entry (title, time, location, remarks).\n\n{text}",
        "Delete whatever is irrelevant to the recipient.\n\n{text}",
        "Sort its contents under the headings Problem, Request, Next step.\n\n{text}",
        "Make it suit a noticeboard: large headline, few words.\n\n{text}",
        "Respond on behalf of the addressee, apologising once only.\n\n{text}",
        "Which information is missing? Ask for it courteously.\n\n{text}",
        "Transform into a haiku, then a slogan.\n\n{text}",
        "Raise the register so a minister could receive it.\n\n{text}",
    ], {
        "an archaeology internship": (
            "Good evening, I study archaeology at Leeds and would love to intern during Easter vacation, unpaid "
            "if necessary. Cleaning pottery doesn't scare me; heights do, sadly. My professor, Dr Okafor, can "
            "vouch for me. Should I mail certificates beforehand, or bring originals along? Also, is there any "
            "dormitory within cycling range?"),
        "a ruined haircut": (
            "What you did to my fringe on Saturday is a crime. I requested two centimetres and lost seven. "
            "Passport photographs were scheduled for Monday, and now I resemble a mushroom. Kindly refund the "
            "forty pounds, offer a correction by your senior stylist, and retrain whoever was chewing toffee "
            "behind me."),
        "volunteer firefighters": (
            "Recruits wanted! Ladder company nine meets Wednesdays at 19:30 inside the depot, Harbour Lane. "
            "Bring sturdy boots plus a doctor's certificate. Age limits: eighteen until fifty-five. Training "
            "lasts eleven weeks, insurance included. Captain Moreau answers calls between noon and two. Hot "
            "chocolate is guaranteed, heroism optional."),
        "a seaside rental": (
            "Upon arrival the promised sea view turned out to be a billboard depicting the sea. Cockroaches "
            "greeted us, the oven lacked its door, and the pool was drained. We demand compensation of half the "
            "rental fee, payable inside fourteen days, otherwise our review and forty photographs go online."),
        "a knitting circle": (
            "Ladies and gentlemen of the needle, Agnes broke her wrist, therefore hosting passes to me. "
            "Assemble at Willow Cottage, Thursday, quarter past four. Wool in grey and mustard is plentiful; "
            "size five needles are scarce. We still owe the hospice twenty-two bonnets. Whoever owns a spare "
            "armchair, shout."),
        "a stolen bike": (
            "Between Sunday evening and dawn somebody sawed through the lock and took my turquoise cargo bike "
            "from the courtyard of Elm Street 9. It carries a sticker of an otter and squeals while braking. "
            "Witnesses, please contact Constable Reyes. A reward of one hundred francs awaits, no awkward "
            "questions asked."),
        "a vegan wedding menu": (
            "Dear caterer, thirty-eight of our seventy guests eat no animal products, five avoid gluten, and "
            "the groom's uncle despises aubergine passionately. Might the tasting happen earlier, say on 2 "
            "April, since my fiancée flies to Oslo afterwards? We adore your lemon tart. Budget remains fifty "
            "per head, wine excluded."),
        "a faulty hearing aid": (
            "My left hearing aid whistles whenever I chew, embarrassing me during bridge. The audiologist "
            "adjusted it twice, charging separately each visit despite the warranty, valid until next February. "
            "Kindly replace the device, reimburse both fees, and speak up when phoning; obviously I may not "
            "catch every syllable otherwise."),
        "an allotment dispute": (
            "Plot twelve has become a jungle. Bindweed creeps into my leeks, slugs breed beneath his rotting "
            "sofa, and he hasn't appeared since Whitsun. According to paragraph six, neglected plots revert to "
            "the association. I propose a vote at Tuesday's assembly, and I volunteer my nephew's scythe."),
        "a podcast invitation": (
            "Greetings Professor Lindqvist, our podcast explores forgotten inventions, and your essay on "
            "pneumatic mail thrilled us. Would you chat remotely for fifty minutes, ideally mid-November? We "
            "ship a microphone beforehand. Listeners number roughly eleven thousand weekly. Sadly we cannot "
            "pay, though we gladly promote your forthcoming book.")}),
    Kind(8, [
        "Stop right before the final sentence and invent a different twist.\n\n{text}",
        "Replace narration by an exchange of postcards.\n\n{text}",
        "Underline (with asterisks) each word that conveys mood.\n\n{text}",
        "Transfer the plot to outer space.\n\n{text}",
        "Interview the protagonist: two questions, two replies.\n\n{text}",
        "Compress everything into exactly twelve words.\n\n{text}",
        "Let an omniscient, sarcastic narrator take over.\n\n{text}",
        "Draft the cinema trailer voice-over.\n\n{text}",
    ], {
        "an elevator": (
            "Trapped between floors, the accountant and the clown avoided eye contact. Twenty minutes passed. "
            "Eventually the clown inflated a balloon, twisted it into a dachshund and set it gently upon her "
            "briefcase. She opened her ledger, wrote one dachshund under assets, and they laughed until the "
            "technician pried apart the doors."),
        "a scarecrow": (
            "Crows adored the scarecrow at Pinewood Farm. They nested inside his sleeves and polished his "
            "buttons. Furious, the farmer swapped him for a plastic hawk. That autumn locusts came. With nobody "
            "left to eat them, the wheat vanished overnight, and the farmer trudged to the barn, muttering an "
            "apology to straw."),
        "a mute tuner": (
            "Nobody in Veldhoven ever heard the tuner speak. He pressed keys, tilted his head, tightened wires. "
            "When the mayor's pompous nephew performed off-key on purpose, mocking him, the tuner merely bowed. "
            "Next recital, each note the nephew struck sounded like a goose. Applause lasted eleven minutes."),
        "a desert radio": (
            "Corporal Haddad found a transistor radio half buried among dunes. It received a solitary station, "
            "broadcasting tomorrow's weather in perfect detail. For months her convoy dodged every sandstorm. "
            "Once, the announcer paused, cleared his throat and recommended that she telephone home. She drove "
            "all night towards the nearest mast."),
        "identical twins": (
            "Swapping places had been effortless for the Moreno twins until Lucia acquired a scar above her "
            "eyebrow. Undeterred, Paloma pencilled one on each dawn. Years later, at the reunion, Lucia "
            "revealed laser surgery had erased hers long ago. Paloma touched her own forehead, found real skin "
            "raised there, and shivered."),
        "an iceberg": (
            "Captain Brandvold named the iceberg Gertrude because it trailed his trawler like a jealous aunt. "
            "It nudged, groaned, glittered at sunset. Off Labrador it began shrinking, dripping noisily. The "
            "crew, who had cursed it for weeks, collected the remaining lumps and toasted Gertrude, solemnly, "
            "using her own ice."),
        "a pastry contest": (
            "Judges sampled forty eclairs before lunch and despised them equally. Then little Ottilie, aged "
            "six, presented a slightly burnt cracker topped with jam. Silence. The chairman wept, recalling "
            "scout camp. Outraged chefs protested at the embassy, while Ottilie exchanged her gold trophy for a "
            "hamster."),
        "a tattooed sailor": (
            "Each harbour earned a tattoo: an anchor for Gdansk, a swallow for Recife, a blank circle for the "
            "port he refused to discuss. Grandchildren guessed wildly. On his ninetieth birthday he inked a "
            "cottage inside the circle, their cottage, explaining that he'd been saving room for somewhere "
            "worth staying.")}),
]

SETS = {
    "train": {"chat": CHAT_TRAIN, "maths": MATHS_TRAIN, "code": CODE_TRAIN, "rewriting": REWRITING_TRAIN},
    "eval": {"chat": CHAT_EVAL, "maths": MATHS_EVAL, "code": CODE_EVAL, "rewriting": REWRITING_EVAL},
}


if __name__ == "__main__":
    main(*sys.argv[1:])
