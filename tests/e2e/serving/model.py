"""Makes the model that the serving rig serves: `python model.py FOLDER`. Runs in the engines' virtual environment.

A Llama of 3 million random weights of a fixed seed. Its tokenizer is byte-level BPE in which each word of the canary's prompts is one
token, and only those words can be answered (the rows of the output layer for all other tokens are zero). What it says means nothing, but
it depends on the whole prompt, repeats exactly, and comes in whole words of one token each.

KV cache: 4 layers x 2 (K, V) x 2 heads x 64 x 2 bytes = 2,048 bytes a token.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20261130
CONTEXT = 2048
KV_BYTES_PER_TOKEN = 4 * 2 * 2 * 64 * 2
SPECIAL = ["<s>", "</s>"]
TEMPLATE = ("{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")


def make_tokenizer(words: tuple[str, ...]) -> PreTrainedTokenizerFast:
    """A tokenizer that has a token for each of `words`, with and without a blank before it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=8192, min_frequency=1, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([f" {word} {word}" for word in words for _ in range(3)] + list(words), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[1], chat_template=TEMPLATE,
                                   model_max_length=CONTEXT, clean_up_tokenization_spaces=False)


def make_model(tokenizer: PreTrainedTokenizerFast, words: tuple[str, ...], spread: float = 0.08) -> LlamaForCausalLM:
    """Random weights, wide enough that attention decides what comes next."""
    torch.manual_seed(SEED)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=64, max_position_embeddings=CONTEXT, initializer_range=spread,
                         bos_token_id=0, eos_token_id=1, tie_word_embeddings=False)
    model = LlamaForCausalLM(config)
    answerable = [ids[0] for word in words if len(ids := tokenizer.encode(f" {word}", add_special_tokens=False)) == 1]
    assert len(answerable) > 250, f"only {len(answerable)} words are one token each"
    with torch.no_grad():
        kept = torch.zeros(len(tokenizer), 1)
        kept[answerable] = 1.0
        model.lm_head.weight.mul_(kept)
    return model.to(torch.bfloat16).eval()


def main(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from probes.canary.words import WORDS

    words = tuple(dict.fromkeys(WORDS))
    tokenizer = make_tokenizer(words)
    make_model(tokenizer, words).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
