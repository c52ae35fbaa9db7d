"""The noise: exact map, true tail, one stream whatever the transformation or the sharding."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy import stats

from dpjax._numerics import normal as module
from dpjax._numerics import normal as normal_module
from dpjax._numerics.normal import fresh_key, normal, normal_like
from dpjax._numerics.scope import enable_x64


def key(seed=0):
    return jax.random.key(seed)


def words_for(u, angle_word, turn_word):
    """Stream words that spell the uniform (m + 1/2) / 2^62 nearest below u, and an angle."""
    m = [int(mpmath.floor(mpmath.mpf(x) * 2**62)) for x in u]
    w0 = np.array([(x >> 31) << 1 for x in m], np.uint32)
    w1 = np.array([(x & 0x7FFFFFFF) << 1 for x in m], np.uint32)
    with mpmath.workdps(40):
        exact = [(mpmath.mpf(x) + 0.5) / 2**62 for x in m]
    return (w0, w1, np.asarray(angle_word, np.uint32), np.asarray(turn_word, np.uint32)), exact


def reference(exact, angle_word, turn_word):
    """Box and Muller's map in 40 digits."""
    out = []
    with mpmath.workdps(40):
        for u, a, t in zip(exact, angle_word, turn_word, strict=True):
            signed = int(np.uint32(a).astype(np.int32)) | 1
            theta = mpmath.mpf(signed) / 2**31 * mpmath.pi / 4
            r = mpmath.sqrt(-2 * mpmath.log(u))
            c, s = mpmath.cos(theta), mpmath.sin(theta)
            c = -c if (t >> 30) & 1 else c
            out.append((r * s, r * c) if t >> 31 else (r * c, r * s))
    return np.array([[float(a), float(b)] for a, b in out])


class TestMap:
    """Crafted uniforms through the map, against 40 digits: stratified, both ends included."""

    strata = np.concatenate(
        [2.0 ** -np.arange(1, 62.5, 0.37), 1 - 2.0 ** -np.arange(1, 53, 0.37), [0.0, 1 - 2**-53]]
    )

    def crafted(self):
        rng = np.random.default_rng(5)
        n = len(self.strata)
        angle = rng.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32)
        angle[:4] = [0, 2**31, 2**31 - 1, 2**32 - 1]
        angle[-2] = 1
        turn = rng.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32)
        words, exact = words_for(self.strata, angle, turn)
        with mpmath.workdps(40):
            radius = np.array([float(mpmath.sqrt(-2 * mpmath.log(u))) for u in exact])
        return words, reference(exact, angle.tolist(), turn.tolist()), radius

    def test_float32(self):
        words, expected, radius = self.crafted()
        z = np.stack(jax.jit(module._box_muller_float32)(*words), 1).astype(float)
        assert np.all(np.isfinite(z))
        assert np.max(np.abs(z - expected) / radius[:, None]) < 1e-6
        assert np.max(np.abs(z)) > 9.3

    def test_float64_and_float32_read_the_same_words_alike(self):
        words, expected, radius = self.crafted()
        with enable_x64(True):
            z = np.stack(jax.jit(module._box_muller_float64)(*words), 1)
        assert np.max(np.abs(z - expected) / radius[:, None]) < 1e-14

    def test_tail_probabilities_down_to_1e_17(self):
        """The largest |z| at radius r, r chosen by its probability, is the true quantile of r."""
        for p in (1e-3, 1e-7, 1e-12, 1e-17):
            words, _ = words_for([p], [1], [0])
            z = float(module._box_muller_float32(*(jnp.asarray(w) for w in words))[0][0])
            assert stats.rayleigh.sf(z) == pytest.approx(p, rel=1e-4)

    def test_jax_random_normal_has_no_such_tail(self):
        """Why this module exists: the largest value that float32 inversion of 23 bits can give."""
        u = np.nextafter(np.float32(1), np.float32(0))
        assert float(np.sqrt(2) * jax.scipy.special.erfinv(u)) < 5.43


def test_stratified_tail_to_1e_7():
    """Enough draws, thinned to the outer stratum by their words, to see the tail at 1e-7.

    Radius words are replaced by the top 2^-15 stratum of u, so that 2^21 pairs stand for 2^36;
    the count of z beyond the 1e-7 quantile must then be binomial.
    """
    n = 1 << 21
    w = [np.asarray(jax.random.bits(key(i), (n,), jnp.uint32)) for i in range(4)]
    z = np.stack(jax.jit(module._box_muller_float32)(w[0] >> np.uint32(15), *w[1:])).ravel()
    cut = stats.norm.isf(1e-7)
    expected = 2 * n * 1e-7 * 2**15
    for count in (np.sum(z > cut), np.sum(z < -cut)):
        assert abs(count - expected) < 4.5 * np.sqrt(expected)


@pytest.fixture(scope="module")
def z():
    return np.asarray(normal(key(11), (1 << 20,)), np.float64)


class TestDistribution:
    n = 1 << 20

    def test_moments(self, z):
        # Standard errors of the first four moments of n normals; 5 of them is p = 6e-7 each.
        for order, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
            assert abs(np.mean(z**order) - mean) < 5 * np.sqrt(variance / self.n)

    def test_kolmogorov_smirnov(self, z):
        assert stats.kstest(z, "norm").pvalue > 1e-4

    def test_pairs_are_uncorrelated_in_value_and_in_square(self, z):
        for a, b in ((z[::2], z[1::2]), (z[:-1], z[1:]), (z[: self.n // 2], z[self.n // 2 :])):
            for f in (lambda x: x, lambda x: x**2 - 1):
                correlation = np.mean(f(a) * f(b)) / np.sqrt(
                    np.mean(f(a) ** 2) * np.mean(f(b) ** 2)
                )
                assert abs(correlation) < 5 / np.sqrt(len(a))

    @pytest.mark.parametrize(("scale", "accepted"), [(1.0, True), (0.99, False), (1.01, False)])
    def test_scale_accepted_when_right_and_rejected_when_wrong(self, z, scale, accepted):
        """Two-sided chi-square test of the variance at p = 1e-4, power above 1 - 1e-9 at 1 %."""
        statistic = np.sum((scale * z) ** 2)
        p = 2 * min(stats.chi2.cdf(statistic, self.n), stats.chi2.sf(statistic, self.n))
        assert (p > 1e-4) == accepted

    def test_no_atom_at_zero(self, z):
        assert np.all(z != 0)


SHAPES = [(), (1,), (7,), (0,), (3, 0), (5, 3), (3, 3, 5, 7), (300, 40), (129, 257), (2, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.at_length(every=4)
def test_shapes_and_dtypes(shape, dtype):
    z = normal(key(), shape, dtype)
    assert z.shape == shape
    assert z.dtype == dtype
    assert np.all(np.isfinite(z.astype(jnp.float32)))
    np.testing.assert_array_equal(z, normal(key(), shape).astype(dtype))
    assert len(np.unique(normal(key(), shape))) >= 0.99 * z.size


def test_x64():
    single = np.asarray(normal(key(), (200, 50)))
    with enable_x64(True):
        double = np.asarray(normal(key(), (200, 50), jnp.float64))
        again = np.asarray(normal(key(), (200, 50), jnp.float32))
    assert double.dtype == np.float64
    np.testing.assert_allclose(double, single, atol=1e-5)
    np.testing.assert_array_equal(again, single)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.complex64, bool])
def test_refuses_what_is_not_real(dtype):
    with pytest.raises(TypeError, match="real floating"):
        normal(key(), (3,), dtype)


def test_refuses_leaves_beyond_the_counter():
    with pytest.raises(ValueError, match="2\\^33"):
        jax.eval_shape(lambda k: normal(k, (1 << 17, (1 << 17) + 2)), key())


TREE = {"w": jnp.zeros((130, 258)), "b": jnp.zeros(7), "s": (jnp.zeros((), jnp.bfloat16), None)}


class TestTree:
    def test_like(self):
        noise = normal_like(key(), TREE)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), noise) == jax.tree.map(
            lambda x: (x.shape, x.dtype), TREE
        )

    def test_a_lone_leaf_is_normal(self):
        np.testing.assert_array_equal(normal_like(key(), TREE["w"]), normal(key(), (130, 258)))

    def test_leaves_are_independent(self):
        tree = [jnp.zeros((1 << 16,)) for _ in range(4)] + [jnp.zeros(4000) for _ in range(4)]
        flat = [np.asarray(z, np.float64) for z in normal_like(key(3), tree)]
        for i in range(8):
            for j in range(i):
                n = min(flat[i].size, flat[j].size)
                assert abs(np.corrcoef(flat[i][:n], flat[j][:n])[0, 1]) < 5 / np.sqrt(n)

    def test_no_value_occurs_twice(self):
        """Of 2e5 floats few agree by chance; a repeated counter would repeat thousands."""
        tree = [
            jnp.zeros((100, 500)),
            jnp.zeros((50_000,)),
            jnp.zeros((50, 1000)),
            *[jnp.zeros(99)] * 9,
        ]
        z = np.concatenate([np.ravel(x) for x in normal_like(key(4), tree)])
        assert z.size - np.unique(z).size < 0.02 * z.size

    def test_deterministic_and_different_between_keys(self):
        a, b, c = normal_like(key(1), TREE), normal_like(key(1), TREE), normal_like(key(2), TREE)
        np.testing.assert_array_equal(a["w"], b["w"])
        assert abs(np.corrcoef(np.ravel(a["w"]), np.ravel(c["w"]))[0, 1]) < 5 / np.sqrt(a["w"].size)

    def test_steps_are_independent(self):
        steps = jax.vmap(lambda t: normal(jax.random.fold_in(key(9), t), (256,)))(jnp.arange(2048))
        correlation = np.corrcoef(np.asarray(steps, np.float64))
        off = correlation[~np.eye(2048, dtype=bool)]
        assert np.max(np.abs(off)) < 7 / np.sqrt(256)
        assert np.std(off) == pytest.approx(1 / np.sqrt(256), rel=0.02)

    def test_a_key_is_used_once(self):
        k = key()
        normal_like(k, TREE)
        with pytest.raises(jax.errors.KeyReuseError):
            normal_like(k, TREE)


class TestTransformations:
    def test_jit_is_eager(self):
        eager = normal_like(key(), TREE)
        jitted = jax.jit(lambda k, t: normal_like(k, t))(key(), TREE)
        jax.tree.map(np.testing.assert_array_equal, eager, jitted)

    @pytest.mark.parametrize("shape", [(3,), (130, 258)])
    def test_vmap_over_keys_is_the_loop(self, shape):
        together = jax.vmap(lambda k: normal(k, shape))(jax.random.split(key(), 3))
        for one, k in zip(together, jax.random.split(key(), 3), strict=True):
            np.testing.assert_array_equal(one, normal(k, shape))

    def test_scan_and_grad(self):
        def loss(scale):
            def step(total, t):
                return total + scale * normal(jax.random.fold_in(key(), t), ()), None

            return jax.lax.scan(step, 0.0, jnp.arange(4))[0]

        expected = sum(float(normal(jax.random.fold_in(key(), t), ())) for t in range(4))
        assert float(jax.grad(loss)(2.0)) == pytest.approx(expected, rel=1e-5)

    def test_raw_and_other_keys(self):
        assert normal(jax.random.PRNGKey(0), (3,)).shape == (3,)
        assert normal(jax.random.key(0, impl="rbg"), (3,)).shape == (3,)

    def test_one_trace(self):
        before = module._draw._cache_size()
        for seed in range(5):
            normal(key(seed), (17, 31))
        assert module._draw._cache_size() <= before + 1


class TestSharding:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))

    @pytest.mark.parametrize(
        ("shape", "spec"),
        [
            ((64, 256), P("data", "model")),
            ((64, 256), P(None, "model")),
            ((64, 256), P(("data", "model"), None)),
            ((8192,), P(("data", "model"))),
            ((64, 10), P("data", None)),
            ((3, 3, 64, 64), P(None, None, None, "model")),
        ],
    )
    @pytest.mark.at_length(every=4)
    def test_values_do_not_depend_on_devices(self, shape, spec):
        sharding = NamedSharding(self.mesh, spec)
        leaf = jax.device_put(jnp.zeros(shape), sharding)
        expected = np.asarray(normal(key(), shape))
        eager = normal_like(key(), leaf)
        assert eager.sharding.is_equivalent_to(sharding, len(shape))
        np.testing.assert_array_equal(eager, expected)
        jitted = jax.jit(lambda k, x: x + normal_like(k, x))(key(), leaf)
        assert jitted.sharding.is_equivalent_to(sharding, len(shape))
        np.testing.assert_array_equal(jitted, expected)

    def test_each_device_draws_its_own_block(self):
        leaf = jax.device_put(jnp.zeros((256, 1024)), NamedSharding(self.mesh, P("data", "model")))
        program = jax.jit(lambda k, x: x + normal_like(k, x)).lower(key(), leaf).compile().as_text()
        assert "c64[32,512]" in program  # pairs of a quarter of the rows, half of the columns
        assert "c64[128,1024]" not in program
        assert "all-gather" not in program


def test_fresh_key_is_fresh():
    a, b = jax.random.key_data(fresh_key()), jax.random.key_data(fresh_key())
    assert not np.array_equal(a, b)
    assert normal(fresh_key(), (2,)).shape == (2,)


@pytest.mark.parametrize(
    ("counter", "secret", "words"),
    [
        ("00000000 " * 4, "00000000 " * 4, "9c6ca96a e17eae66 fc10ecd4 5256a7d8"),
        ("ffffffff " * 4, "ffffffff " * 4, "2a881696 57012287 f6c7446e a16a6732"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0 082efa98 ec4e6c89",
            "59cd1dbb b8879579 86b5d00c ac8b6d84",
        ),
    ],
)
def test_threefry_known_answers(counter, secret, words):
    """The known-answer vectors that Random123 publishes for Threefry-4x32-20."""
    read = lambda text: tuple(jnp.uint32(int(w, 16)) for w in text.split())  # noqa: E731
    assert [int(w) for w in module._threefry(read(secret), read(counter))] == [
        int(w, 16) for w in words.split()
    ]


def test_many_small_leaves_share_programs_and_have_the_values_of_slices():
    flat = jnp.arange(50.0)
    for start, shape in ((0, (1,)), (7, (3, 4)), (38, (2, 3, 2)), (9, ()), (4, (0, 2))):
        parts = [normal_module._part(flat, start, shape, many=many) for many in (False, True)]
        np.testing.assert_array_equal(*parts)
    leaves = [jnp.zeros(3 + i % 4) for i in range(120)]
    lowered = jax.jit(lambda key: normal_module.normal_like(key, leaves)).lower(jax.random.key(0))
    # A slice a leaf would be compiled a leaf; what is left are those of the generator.
    assert lowered.as_text().count("stablehlo.slice") < 30


def test_small_leaves_have_noise_of_their_own():
    """Numbers of a continuous law are all different, whether or not leaves are drawn together."""
    small, large = 100, normal_module.SHARED_DRAW
    for count in (3, 100):  # as slices, and by an index
        tree = [jnp.zeros((small,))] * count + [jnp.zeros((large,)), jnp.zeros(())]
        drawn = normal_module.normal_like(jax.random.key(count), tree)
        flat = np.concatenate([np.ravel(leaf) for leaf in drawn])
        # Of n float32 draws about n²·2^−25 agree by chance.
        assert len(flat) - len(np.unique(flat)) < 10 + 4 * len(flat) ** 2 * 2.0**-25
