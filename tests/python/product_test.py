import numpy as np
import agmm

SPEC = "A[M_x, K] * B[K, N_x] -> C[M, N_x]"


def integers(rows, cols, seed):
    return np.random.default_rng(seed).integers(-4, 5, (rows, cols)).astype(np.float32)


def test_a_product_of_put_arrays_is_exact(client):
    a, b = integers(50, 30, 1), integers(30, 40, 2)
    client.put("A", a, "[M_x, K]")
    client.put("B", b, "[K, N_x]")
    job = client.submit(SPEC, "A", "B", "C")
    info = job.wait()
    assert info.state == agmm.JobState.SUCCEEDED
    np.testing.assert_array_equal(client.get("C"), a @ b)
    info = client.run(SPEC, "A", "B", "C")
    assert (info.m, info.n, info.k) == (50, 40, 30)
    c = client.matmul(SPEC, a, b)
    np.testing.assert_array_equal(c.numpy(), a @ b)
    print(c.job, c, client.tensors(), client.world())
    np.testing.assert_array_equal(np.asarray(client.matmul(SPEC, "A", b.T.copy().T)), a @ b)
