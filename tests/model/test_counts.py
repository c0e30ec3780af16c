from llama_ablate.design.variants import resolve_preset
from llama_ablate.model.counts import count


def spec_of(name):
    return resolve_preset(name)[0]


def test_gpt2_small_has_its_published_size():
    assert count(spec_of("gpt2-small")).parameters == 124_439_808


def test_gpt2_smalls_cache_is_two_times_layers_times_width_times_two_bytes():
    assert count(spec_of("gpt2-small")).kv_bytes_per_token == 2 * 12 * 768 * 2


def test_transformer_2017s_decoder_adds_up_by_hand():
    d, f, layers, vocab = 512, 2048, 6, 37000
    attention, feedforward, norms = 4 * (d * d + d), 2 * d * f + f + d, 2 * 2 * d
    expected = vocab * d + layers * (attention + feedforward + norms)
    assert count(spec_of("transformer-2017")).parameters == expected


def test_llama_tinys_flops_add_up_by_hand():
    d, f, layers, vocab, context = 256, 704, 4, 32000, 256
    per_layer = 2 * (4 * d * d + 3 * d * f) + 4 * context * d
    counts = count(spec_of("llama2-tiny"))
    assert counts.flops_per_token == layers * per_layer + 2 * vocab * d
    assert counts.train_flops_per_token == 3 * counts.flops_per_token
