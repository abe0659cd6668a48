"""What features can be, in words that both planes use: how states are stored, and what the target's answers are kept as."""

from typing import Literal

FeatureDtype = Literal["fp8", "bf16", "fp32"]

#: ``LastState``: the last hidden state, of which the head makes every logit. ``TopK``: the probabilities of the most likely
#: tokens alone.
TeacherKind = Literal["LastState", "TopK"]

#: Tokens whose probabilities ``TopK`` keeps.
TOP_K = 64
