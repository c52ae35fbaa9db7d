"""One valid example of every mechanism, and everything that can be wrapped around one."""

from dpjax import accounting as acc

EXAMPLES = [
    acc.Gaussian(1.0),
    acc.UniformBall(0.1, 3),
    acc.PureDP(0.5, "add-remove"),
    acc.ApproximateDP(0.5, 1e-6, "add-remove"),
    acc.ZeroConcentrated(0.1),
    acc.Laplace(2.0),
    acc.DiscreteLaplace(2.0, 3),
    acc.DiscreteGaussian(2.0, 3),
    acc.RandomizedResponse(0.5, 4),
    acc.Exponential(0.5),
    acc.PoissonSampled(acc.Gaussian(1.0), 0.1),
    acc.RandomAllocation(acc.Gaussian(1.0), 4),
    acc.TruncatedPoissonSampled(acc.Gaussian(1.0), 0.1, 10, 2),
    acc.FixedBatchSampled(acc.Gaussian(1.0), 1, 10),
    acc.Shuffled(acc.Gaussian(1.0), 4),
    acc.Repeated(acc.Gaussian(1.0), 4),
    acc.Composed((acc.Gaussian(1.0), acc.Gaussian(2.0))),
    acc.BestOf(acc.Gaussian(1.0), 3.0),
    acc.ObjectivePerturbation(1.0, 50.0, 0.25, 100.0, 0.1),
    acc.RandomizedSensitivity([0.1, 0.2], [0.5, 0.5], 1.0),
    acc.NoisyGradientDescent(10, 0.1, 0.1, 0.1, 1.0, 2.0, 3.0),
    acc.NoisyCyclicDescent(10, 0.1, 0.1, 0.1, 1.0, 2.0, 5, 3.0),
    acc.NoisySampledDescent(10, 0.1, 0.1, 0.1, 1.0, 2.0, 5, 50, 3.0),
    acc.RecentredGaussian(1.0, 0.1, 10),
    acc.BoxedAngles(0.1, 0.1, 10, 5),
    acc.TangentBall(0.1, 0.1, 10),
    acc.Anisotropic(1.0, 0.1, 0.1, 0.1, 10),
    acc.GeoDP(1.0, 0.1, 10, 5, unsafe_no_dp=True),
    acc.CorrelatedGaussian(2.0, [1.0, 0.5, 0.25], 10, 4, 2.0),
    acc.CyclicPoissonCorrelated(2.0, [1.0, 0.5, 0.25], 4, 0.1),
]

WRAPPERS = {
    "Repeated": lambda run: acc.Repeated(run, 3),
    "Composed": lambda run: acc.Composed((acc.Gaussian(5.0), run)),
    "BestOf": lambda run: acc.BestOf(run, 3.0),
    "PoissonSampled": lambda run: acc.PoissonSampled(run, 0.1),
    "TruncatedPoissonSampled": lambda run: acc.TruncatedPoissonSampled(run, 0.1, 10, 2),
    "RandomAllocation": lambda run: acc.RandomAllocation(run, 4, chosen=2),
    "FixedBatchSampled": lambda run: acc.FixedBatchSampled(run, 1, 10),
    "Shuffled": lambda run: acc.Shuffled(run, 4),
    "nested": lambda run: acc.Composed((acc.Repeated(acc.BestOf(run, 2.0), 2), run)),
}
