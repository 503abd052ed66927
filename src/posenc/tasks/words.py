# SPDX-License-Identifier: Apache-2.0
"""Distinct names: English words that are one token for most tokenizers."""

from random import Random

NOUNS = tuple(
    """
    acorn actor album alley amber anchor angle ankle apple apron arch arena arrow artist atlas attic autumn avenue award
    bacon badge bakery balcony ball banana band bank banner barn barrel basin basket bath beach bead bean bear beard bed
    bee bell belt bench berry bicycle bird biscuit blanket blade block blossom board boat bone book boot bottle bowl box
    brain branch bread breeze brick bridge broom brush bucket bud bulb bullet butter button cabin cable cactus cage cake
    camel camera camp canal candle cannon canoe canvas cap captain car card carpet carrot cart castle cat cave ceiling
    cellar chain chair chalk chapel cheese cherry chess chest chicken chimney church circle circus clay cliff clock cloth
    cloud clown coal coast coat coffee coin collar comb comet compass copper coral cork corn corner cotton couch cow crab
    cradle crane cream crow crown cup curtain cushion daisy dam dance dawn deer desert desk diamond dish dog doll dolphin
    donkey door dove dragon drawer dream dress drum duck dust eagle ear earth echo egg elbow elephant engine eye fabric
    farm feather fence fern ferry field finger fire fish flag flame flask flood floor flour flower flute fog forest fork
    fountain fox frame frog fruit funnel galaxy garden garlic gate ghost giant giraffe glacier glass glove goat gold goose
    grain grape grass gravel guitar hair hall hammer hand harbor harp hat hawk hazel heart hedge helmet hen herb hill
    honey hood hook horn horse hotel house ice ink iron island ivory jacket jar jelly jewel juice jungle kettle key king
    kitchen kite knee knife knot ladder lake lamb lamp lantern lawn leaf leather lemon letter library lily lime lion lip
    lizard lock lotus magnet mango maple marble market mask meadow melon metal milk mill mirror monk monkey moon moth
    mountain mouse mouth mud museum mushroom nail neck needle nest net night nose nut oak oar ocean office oil olive onion
    orange orchid oven owl ox oyster paddle page paint palace palm pan panda paper parcel park parrot peach pearl pebble
    pen pencil penguin pepper piano picture pie pig pigeon pillow pilot pine pipe pirate planet plate plum pocket poem
    pond pony potato prince pumpkin puppet purse queen quilt rabbit radio rain raven ribbon rice ring river road robot
    rocket roof room root rope rose ruby sail salad salmon salt sand sandwich saw school scissors seed shadow shark sheep
    shelf shell ship shirt shoe shovel silk silver sink skin sky sled snail snake snow soap sock sofa soup spider spoon
    spring square stable stair star statue stone stove straw street sugar sun swan sword table tail tea temple tent
    theater thread thumb tiger toad toast tomato tongue tooth towel tower town train tray tree trumpet tulip tunnel turtle
    valley vase velvet village vine violin wagon wall walnut watch water wave wax whale wheat wheel whistle willow wind
    window wine wing winter wolf wood wool yard zebra
    """.split()  # noqa: SIM905
)
ADJECTIVES = tuple(
    """
    ancient angry blue bold brave bright broken brown busy calm cheap clean clever cold crooked curious dark deep dry
    eager early empty faint famous fast flat foreign gentle grand gray green happy heavy hidden hollow honest huge humble
    hungry idle jolly kind large late lazy light little lonely loud lucky modern narrow new noble odd old pale plain proud
    purple quick quiet rare red rich rough round rusty sad sharp short shy silent simple slow small smooth soft sour
    steep strange strong sweet tall tame thick thin tiny tired warm wet white wide wild wise wooden yellow young
    """.split()  # noqa: SIM905
)
COUNT = len(NOUNS) * len(ADJECTIVES)
"""How many names there are."""


def names(draws: Random, count: int) -> list[str]:
    """Different names: nouns, or, where there are not as many, nouns with a word before them ("quiet harbor")."""
    if count <= len(NOUNS):
        return draws.sample(NOUNS, len(NOUNS))[:count]
    return [
        f"{ADJECTIVES[i % len(ADJECTIVES)]} {NOUNS[i // len(ADJECTIVES)]}"
        for i in draws.sample(range(COUNT), COUNT)[:count]
    ]
