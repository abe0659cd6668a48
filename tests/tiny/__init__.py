"""A tiny target model that is really trained, on conversations that the machine makes.

grammar.py    the conversations, and what a perfect model would answer
tokenizer.py  words to ids, and the chat template
train.py      the model, its training, and how good it has become
make.py       writes all to a folder; ``cached()`` does so once a machine
flags.py      what SGLang must be told to serve it on a CPU
"""
