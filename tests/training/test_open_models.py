"""The road of an open model: a checkpoint is loaded, adapted privately, merged and written back."""

from __future__ import annotations

import json
import math
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from dpjax import training

List = getattr(nnx, "List", list)  # older releases of flax take a list as it is
WORDS, WIDTH, HEADS, KEYS, HEAD, HIDDEN, LAYERS = 32, 16, 4, 2, 6, 24, 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": WORDS,
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KEYS,
    "head_dim": HEAD, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "max_position_embeddings": 64, "hidden_act": "silu", "attention_bias": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def write_checkpoint(folder):
    """Random weights in Hugging Face's layout, each kernel [outputs, inputs]."""
    rng = np.random.default_rng(0)

    def draw(*shape):
        return (rng.normal(size=shape) / math.sqrt(shape[-1])).astype(np.float32)

    found = {"model.embed_tokens.weight": draw(WORDS, WIDTH), "lm_head.weight": draw(WORDS, WIDTH)}
    found["model.norm.weight"] = np.ones(WIDTH, np.float32)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, heads in (("q", HEADS), ("k", KEYS), ("v", KEYS)):
            found[f"{at}.self_attn.{name}_proj.weight"] = draw(heads * HEAD, WIDTH)
        found[f"{at}.self_attn.o_proj.weight"] = draw(WIDTH, HEADS * HEAD)
        for name in ("gate", "up"):
            found[f"{at}.mlp.{name}_proj.weight"] = draw(HIDDEN, WIDTH)
        found[f"{at}.mlp.down_proj.weight"] = draw(WIDTH, HIDDEN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}.{name}.weight"] = np.ones(WIDTH, np.float32) + draw(WIDTH) / 4
    folder.mkdir()
    save_file(found, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def read_logits(folder, text):
    """The logits of Llama by NumPy in float64, from the files alone."""
    w = {k: v.astype(np.float64) for k, v in load_file(folder / "model.safetensors").items()}
    places = np.arange(len(text))[:, None] / 10000.0 ** (np.arange(HEAD // 2) * 2 / HEAD)

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale

    def split(x, kernel, heads):
        x = (x @ kernel.T).reshape(len(x), heads, HEAD)
        return np.repeat(x, HEADS // heads, axis=1)

    def rotate(x):
        cos, sin = (f(places)[:, None] for f in (np.cos, np.sin))
        one, two = np.split(x, 2, axis=-1)
        return np.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)

    x = w["model.embed_tokens.weight"][text]
    for layer in range(LAYERS):
        own = {k.split(f"layers.{layer}.")[1]: v for k, v in w.items() if f"layers.{layer}." in k}
        h = norm(x, own["input_layernorm.weight"])
        q, k, v = (
            split(h, own[f"self_attn.{n}_proj.weight"], heads)
            for n, heads in (("q", HEADS), ("k", KEYS), ("v", KEYS))
        )
        scores = np.einsum("tnh,snh->nts", rotate(q), rotate(k)) / math.sqrt(HEAD)
        scores = np.where(np.tri(len(text)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        h = np.einsum("nts,snh->tnh", weights, v).reshape(len(text), -1)
        x = x + h @ own["self_attn.o_proj.weight"].T
        h = norm(x, own["post_attention_layernorm.weight"])
        gate, up = (h @ own[f"mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ own["mlp.down_proj.weight"].T
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


class Einsum(nnx.Module):
    def __init__(self, equation, shape, rngs):
        self.einsum_str = equation
        self.w = nnx.Param(nnx.initializers.normal()(rngs.params(), shape))

    def __call__(self, x):
        return jnp.einsum(self.einsum_str, x, self.w[...])


class Scale(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(WIDTH))

    def __call__(self, x):
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * self.w[...]


class Parts(nnx.Module):
    """Parts under their names."""

    def __init__(self, **parts):
        for name, part in parts.items():
            setattr(self, name, part)

    def __getitem__(self, name):
        return getattr(self, name)


class Layer(nnx.Module):
    """A block of Llama with the arrays of tunix's."""

    def __init__(self, rngs):
        self.input_layernorm, self.post_attention_layernorm = Scale(), Scale()
        self.attn = Parts(
            q_proj=Einsum("TD,DNH->TNH", (WIDTH, HEADS, HEAD), rngs),
            k_proj=Einsum("TD,DKH->TKH", (WIDTH, KEYS, HEAD), rngs),
            v_proj=Einsum("TD,DKH->TKH", (WIDTH, KEYS, HEAD), rngs),
            o_proj=Einsum("TNH,NHD->TD", (HEADS, HEAD, WIDTH), rngs),
        )
        sizes = {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
        self.mlp = Parts(
            **{f"{n}_proj": nnx.Linear(*s, use_bias=False, rngs=rngs) for n, s in sizes.items()}
        )

    def __call__(self, x):
        places = jnp.arange(len(x))[:, None] / 10000.0 ** (jnp.arange(HEAD // 2) * 2 / HEAD)
        cos, sin = jnp.cos(places)[:, None], jnp.sin(places)[:, None]

        def rotate(x):
            one, two = jnp.split(x, 2, axis=-1)
            return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)

        attn, mlp, h = self.attn, self.mlp, self.input_layernorm(x)
        q, k, v = rotate(attn["q_proj"](h)), rotate(attn["k_proj"](h)), attn["v_proj"](h)
        k, v = (jnp.repeat(y, HEADS // KEYS, axis=1) for y in (k, v))
        scores = jnp.einsum("tnh,snh->nts", q, k) / math.sqrt(HEAD)
        weights = jax.nn.softmax(jnp.where(np.tri(len(x), dtype=bool), scores, -1e30))
        x = x + attn["o_proj"](jnp.einsum("nts,snh->tnh", weights, v))
        h = self.post_attention_layernorm(x)
        return x + mlp["down_proj"](jax.nn.silu(mlp["gate_proj"](h)) * mlp["up_proj"](h))


class Llama(nnx.Module):
    def __init__(self, rngs):
        self.embedder = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.layers = List([Layer(rngs) for _ in range(LAYERS)])
        self.final_norm = Scale()
        self.lm_head = Einsum("TD,DV->TV", (WIDTH, WORDS), rngs)

    def __call__(self, texts, positions, cache, mask):
        del positions, mask  # of one text from its beginning, causal
        x = self.embedder(texts[0])
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.final_norm(x))[None], cache


def load(folder):
    """A library's loader: another tree, every kernel transposed and cut into heads."""
    w = load_file(pathlib.Path(folder) / "model.safetensors")
    heads = {"q": (WIDTH, HEADS, HEAD), "o": (HEADS, HEAD, WIDTH)}
    heads |= {"k": (WIDTH, KEYS, HEAD), "v": (WIDTH, KEYS, HEAD)}
    module = Llama(nnx.Rngs(0))
    module.embedder.embedding[...] = jnp.asarray(w["model.embed_tokens.weight"])
    module.final_norm.w[...] = jnp.asarray(w["model.norm.weight"])
    module.lm_head.w[...] = jnp.asarray(w["lm_head.weight"].T)
    for number, layer in enumerate(module.layers):
        at = f"model.layers.{number}"
        for name, shape in heads.items():
            kernel = w[f"{at}.self_attn.{name}_proj.weight"].T.reshape(shape)
            layer.attn[f"{name}_proj"].w[...] = jnp.asarray(kernel)
        for name in ("gate_proj", "up_proj", "down_proj"):
            layer.mlp[name].kernel[...] = jnp.asarray(w[f"{at}.mlp.{name}.weight"].T)
        for name in ("input_layernorm", "post_attention_layernorm"):
            getattr(layer, name).w[...] = jnp.asarray(w[f"{at}.{name}.weight"])
    # As tunix's loader leaves it: put on one device, whatever mesh trains.
    nnx.update(module, jax.device_put(nnx.state(module), jax.devices()[0]))
    return module


TEXTS = [
    np.random.default_rng(number).integers(3, WORDS, size=4 + number % 5) for number in range(48)
]


PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "training.md"


def read_page():
    """The road as a user types it, from the page."""
    page = PAGE.read_text(encoding="utf-8")
    return page.split(f"<!-- tests/training/{pathlib.Path(__file__).name} runs this -->")[1].split(
        "```"
    )[1]


def walk(original, folder, config, monkeypatch):
    """Run the page's code: `load`, and the adapted module that it wrote to the folder."""
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    names = {"original": original, "folder": folder, "config": config, "texts": TEXTS}
    exec(read_page().removeprefix("python\n"), names)
    assert (folder / "certificate.json").exists()
    return names["load"], names["tuned"]


@pytest.mark.exact
def test_texts_of_a_grain_data_set_are_those_of_the_lists():
    """Of several lengths they are refused in a sentence; filled up they are what the page makes."""
    grain = pytest.importorskip("grain")
    with pytest.raises(ValueError, match="data must have records of one shape"):
        training.HostData(grain.MapDataset.source(TEXTS)).load(np.arange(8), 8)

    def fill(text):
        there = np.arange(9) < len(text)
        return np.pad(text, (0, 9 - len(text))).astype(np.int32), there

    data = training.HostData(grain.MapDataset.source(TEXTS).map(fill))
    assert data.records == len(TEXTS)
    tokens, there = data.load(np.array([5, 0, 41]), 3)
    for place, number in enumerate((5, 0, 41)):
        np.testing.assert_array_equal(tokens[place][there[place]], TEXTS[number])
        assert not tokens[place][~there[place]].any()


def test_the_road_is_short():
    assert len(read_page().strip().splitlines()) <= 40


def check(before, after, logits_before, logits_after, of_tuned):
    """What was written gives the adapted module's logits, and moved by the adapters' rank alone."""
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert moved == {name for name in before if "_proj" in name or name == "lm_head.weight"}
    for name in moved:
        values = np.linalg.svd(after[name].astype(np.float64) - before[name], compute_uv=False)
        assert values[1] > 1e-3 * values[0]
        assert values[2] < 1e-4 * values[0]
    np.testing.assert_allclose(of_tuned, logits_after, atol=1e-4)
    assert np.abs(logits_after - logits_before).max() > 0.01


def run_library(module, text):
    """The logits of a text by a module that takes positions, a cache and a mask, as tunix's do."""
    causal = jnp.tri(len(text), dtype=bool)[None]
    return module(text[None], jnp.arange(len(text))[None], None, causal)[0][0]


@pytest.mark.exact
def test_a_checkpoint_is_adapted_and_read_again_by_who_wrote_it(
    tmp_path, lenient_promotion, monkeypatch
):
    """A loader and a module of this file stand in for tunix, NumPy for transformers."""
    original, folder, text = write_checkpoint(tmp_path / "original"), tmp_path / "tuned", TEXTS[4]
    tunix = types.SimpleNamespace(create_model_from_safe_tensors=lambda place, _: load(place))
    monkeypatch.setitem(sys.modules, "tunix", types.ModuleType("tunix"))
    monkeypatch.setitem(sys.modules, "tunix.models", types.ModuleType("tunix.models"))
    library = types.ModuleType("tunix.models.llama3")
    library.params = tunix
    library.model = types.SimpleNamespace(apply_rope=lambda *_, rope_theta=1e6: rope_theta)
    monkeypatch.setitem(sys.modules, "tunix.models.llama3", library)
    np.testing.assert_allclose(
        run_library(load(original), text), read_logits(original, text), atol=1e-4
    )
    _, tuned = walk(original, folder, types.SimpleNamespace(rope_theta=1e4), monkeypatch)
    assert library.model.apply_rope() == 1e4, "the page hands the checkpoint's angles on"
    before, after = (load_file(place / "model.safetensors") for place in (original, folder))
    logits = [read_logits(place, text) for place in (original, folder)]
    check(before, after, *logits, run_library(tuned, text))


def write_by_hand(module, tensor):
    """The names and layouts of transformers for a module of tunix: kernels [outputs, inputs]."""

    def flat(kernel, inputs):
        return np.asarray(kernel[...]).reshape(inputs, -1).T

    found = {
        "model.embed_tokens.weight": np.asarray(module.embedder.input_embedding[...]),
        "lm_head.weight": flat(module.lm_head.w, WIDTH),
        "model.norm.weight": np.asarray(module.final_norm.w[...]),
    }
    for number, layer in enumerate(module.layers):
        at = f"model.layers.{number}"
        for name in ("q_proj", "k_proj", "v_proj"):
            found[f"{at}.self_attn.{name}.weight"] = flat(getattr(layer.attn, name).w, WIDTH)
        found[f"{at}.self_attn.o_proj.weight"] = flat(layer.attn.o_proj.w, HEADS * HEAD)
        for name, inputs in (("gate_proj", WIDTH), ("up_proj", WIDTH), ("down_proj", HIDDEN)):
            found[f"{at}.mlp.{name}.weight"] = flat(getattr(layer.mlp, name).kernel, inputs)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}.{name}.weight"] = np.asarray(getattr(layer, name).w[...])
    return {name: tensor(np.array(value)) for name, value in found.items()}


@pytest.mark.exact
def test_transformers_writes_tunix_trains_and_transformers_reads(
    tmp_path, lenient_promotion, monkeypatch
):
    """The same road by the libraries themselves, where they are installed."""
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    model_lib = pytest.importorskip("tunix.models.llama3.model")
    loader = pytest.importorskip("tunix.models.llama3.params")
    monkeypatch.setattr(model_lib, "apply_rope", model_lib.apply_rope)  # the page replaces it
    torch.manual_seed(0)
    original, folder, text = tmp_path / "original", tmp_path / "tuned", TEXTS[4]
    # at the default range, 0.02, scores of attention are so near 0 that any rotation would do
    written = transformers.LlamaConfig(**CONFIG, initializer_range=WIDTH**-0.5)
    transformers.LlamaForCausalLM(written).save_pretrained(original)
    config = model_lib.ModelConfig(
        num_layers=LAYERS, vocab_size=WORDS, embed_dim=WIDTH, hidden_dim=HIDDEN, num_heads=HEADS,
        head_dim=HEAD, num_kv_heads=KEYS, rope_theta=10_000, norm_eps=1e-5,
    )  # fmt: skip

    def compute(model, text=text):
        return model(torch.tensor(text[None])).logits[0].detach().numpy()

    def read(place, text=text):
        model = transformers.LlamaForCausalLM.from_pretrained(place, dtype=torch.float32)
        return compute(model, text)

    # tunix and transformers agree on one position, where nothing is turned, whatever the angles
    untouched = loader.create_model_from_safe_tensors(str(original), config)
    one = text[:1]
    np.testing.assert_allclose(run_library(untouched, one), read(original, one), atol=1e-5)
    load, tuned = walk(original, folder, config, monkeypatch)
    np.testing.assert_allclose(run_library(load(original), text), read(original), atol=1e-4)
    # by the angles that tunix has where it is handed none, this bar is missed
    other = transformers.LlamaForCausalLM.from_pretrained(original, dtype=torch.float32)
    turned = transformers.LlamaConfig(**{**CONFIG, "rope_theta": 1_000_000.0})
    turned = transformers.LlamaForCausalLM(turned)
    turned.load_state_dict(other.state_dict())
    assert np.abs(compute(turned) - read(original)).max() > 0.01

    before, after = (load_file(place / "model.safetensors") for place in (original, folder))
    check(before, after, read(original), read(folder), run_library(tuned, text))
    again = (jax.tree.leaves(nnx.state(module)) for module in (tuned, load(folder)))
    for trained, found in zip(*again, strict=True):
        np.testing.assert_array_equal(trained, found)
    other.load_state_dict(write_by_hand(tuned, torch.tensor))
    np.testing.assert_array_equal(compute(other), read(folder))
