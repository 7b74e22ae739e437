"""Functions of cuBLAS on a GPU elsewhere, called as C calls them, against NumPy: every type, side, half and transpose."""

import ctypes
import itertools

import numpy as np

RUNTIME = ctypes.CDLL("libcudart.so.13")
BLAS = ctypes.CDLL("libcublas.so.13")
TYPES = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}
RANDOM = np.random.default_rng(1)
HANDLE = ctypes.c_void_p()


def good(code):
    """A call that went well."""
    assert code == 0, code


class Device:
    """An array in memory of the device, by columns."""

    def __init__(self, array):
        self.array = np.asfortranarray(array)
        self.address = ctypes.c_void_p()
        good(RUNTIME.cudaMalloc(ctypes.byref(self.address), ctypes.c_size_t(max(self.array.nbytes, 1))))
        good(RUNTIME.cudaMemcpy(self.address, self.array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(self.array.nbytes), 1))

    def back(self):
        """What is there."""
        seen = np.empty_like(self.array)
        good(RUNTIME.cudaMemcpy(seen.ctypes.data_as(ctypes.c_void_p), self.address, ctypes.c_size_t(seen.nbytes), 2))
        return seen


def call(name, *arguments):
    """Calls a function: integers as int, arrays of the device by address, scalars of NumPy by reference."""
    plain = []
    for argument in arguments:
        if isinstance(argument, Device):
            plain.append(argument.address)
        elif isinstance(argument, np.ndarray):
            plain.append(argument.ctypes.data_as(ctypes.c_void_p))
        else:
            plain.append(argument if argument is None else ctypes.c_int(argument))
    good(getattr(BLAS, name)(HANDLE, *plain))


def made(kind, *shape):
    """Random numbers."""
    numbers = RANDOM.standard_normal(shape)
    if np.iscomplexobj(np.empty(0, kind)):
        numbers = numbers + 1j * RANDOM.standard_normal(shape)
    return numbers.astype(kind)


def near(seen, right, kind):
    """Whether numbers are as they should be."""
    limit = 1e-3 if np.finfo(kind).eps > 1e-10 else 1e-9
    assert np.allclose(seen, right, rtol=limit, atol=limit), (seen, right)


def turned(matrix, transpose):
    """A matrix as it is, transposed, or that conjugated."""
    return [matrix, matrix.T, matrix.conj().T][transpose]


def one(value, kind):
    """A scalar that lies in the host's memory."""
    return np.array([value], dtype=kind)


def real_of(kind):
    """The type of a real part."""
    return np.empty(0, kind).real.dtype


def vectors(letter, kind):
    """Functions of vectors."""
    is_complex, real = letter in "CZ", real_of(kind)
    x, y = made(kind, 40), made(kind, 40)
    alpha = one(made(kind, 1)[0], kind)
    far = Device(y)
    call(f"cublas{letter}axpy_v2", 40, alpha, Device(x), 1, far, 1)
    near(far.back(), y + alpha * x, kind)
    # Every second one, and backwards.
    far = Device(y)
    call(f"cublas{letter}axpy_v2", 13, alpha, Device(x), -2, far, 3)
    right = y.copy()
    right[0:39:3] += alpha * x[24::-2]
    near(far.back(), right, kind)
    far = Device(x)
    call(f"cublas{letter}scal_v2", 40, alpha, far, 1)
    near(far.back(), alpha * x, kind)
    for name, right in ([("dotu", x @ y), ("dotc", np.vdot(x, y))] if is_complex else [("dot", x @ y)]):
        result = one(0, kind)
        call(f"cublas{letter}{name}_v2", 40, Device(x), 1, Device(y), 1, result)
        near(result[0], right, kind)
    long_name = {"S": "S", "D": "D", "C": "Sc", "Z": "Dz"}[letter]
    result = one(0, real)
    call(f"cublas{long_name}nrm2_v2", 40, Device(x), 1, result)
    near(result[0], np.linalg.norm(x), kind)
    call(f"cublas{long_name}asum_v2", 40, Device(x), 1, result)
    near(result[0], np.sum(np.abs(x.real) + np.abs(x.imag)), kind)
    place = one(0, np.int32)
    sizes = np.abs(x.real) + np.abs(x.imag)
    call(f"cublasI{letter.lower()}amax_v2", 40, Device(x), 1, place)
    assert place[0] == np.argmax(sizes) + 1
    call(f"cublasI{letter.lower()}amin_v2", 40, Device(x), 1, place)
    assert place[0] == np.argmin(sizes) + 1
    near_x, near_y = Device(x), Device(y)
    call(f"cublas{letter}swap_v2", 40, near_x, 1, near_y, 1)
    assert np.array_equal(near_x.back(), y) and np.array_equal(near_y.back(), x)
    call(f"cublas{letter}copy_v2", 40, near_x, 1, near_y, 1)
    assert np.array_equal(near_y.back(), y)
    if is_complex:
        far = Device(x)
        call({"C": "cublasCsscal_v2", "Z": "cublasZdscal_v2"}[letter], 40, one(2.5, real), far, 1)
        near(far.back(), 2.5 * x, kind)


def products(letter, kind):
    """Matrices with vectors and with matrices."""
    alpha, beta = one(made(kind, 1)[0], kind), one(made(kind, 1)[0], kind)
    for transpose in range(3):
        a = made(kind, 7, 5)
        x, y = made(kind, 5 if transpose == 0 else 7), made(kind, 7 if transpose == 0 else 5)
        far = Device(y)
        call(f"cublas{letter}gemv_v2", transpose, 7, 5, alpha, Device(a), 7, Device(x), 1, beta, far, 1)
        near(far.back(), alpha * (turned(a, transpose) @ x) + beta * y, kind)
    x, y, a = made(kind, 7), made(kind, 5), made(kind, 7, 5)
    for name, row in ([("geru", y), ("gerc", y.conj())] if letter in "CZ" else [("ger", y)]):
        far = Device(a)
        call(f"cublas{letter}{name}_v2", 7, 5, alpha, Device(x), 1, Device(y), 1, far, 7)
        near(far.back(), a + alpha * np.outer(x, row), kind)
    for left, right in itertools.product(range(3), range(3)):
        a = made(kind, *((6, 4) if left == 0 else (4, 6)))
        b, c = made(kind, *((4, 5) if right == 0 else (5, 4))), made(kind, 6, 5)
        far = Device(c)
        call(f"cublas{letter}gemm_v2", left, right, 6, 5, 4, alpha, Device(a), a.shape[0], Device(b), b.shape[0], beta, far, 6)
        near(far.back(), alpha * (turned(a, left) @ turned(b, right)) + beta * c, kind)


def triangles(letter, kind):
    """Triangular systems, products, and both halves of symmetric matrices."""
    alpha, beta = one(made(kind, 1)[0], kind), one(made(kind, 1)[0], kind)
    for side, fill, transpose, diagonal in itertools.product(range(2), range(2), range(3), range(2)):
        order = 6 if side == 0 else 4
        a = made(kind, order, order) / 4 + 2 * np.eye(order, dtype=kind)
        b = made(kind, 6, 4)
        used = np.triu(a) if fill == 1 else np.tril(a)
        if diagonal == 1:
            np.fill_diagonal(used, 1)
        used = turned(used, transpose)
        far = Device(b)
        call(f"cublas{letter}trsm_v2", side, fill, transpose, diagonal, 6, 4, alpha, Device(a), order, far, 6)
        solved = far.back()
        near(used @ solved if side == 0 else solved @ used, alpha * b, kind)
        far = Device(np.zeros_like(b))
        call(f"cublas{letter}trmm_v2", side, fill, transpose, diagonal, 6, 4, alpha, Device(a), order, Device(b), 6, far, 6)
        near(far.back(), alpha * (used @ b if side == 0 else b @ used), kind)
        if side == 0:
            x = made(kind, 6)
            far = Device(x)
            call(f"cublas{letter}trsv_v2", fill, transpose, diagonal, 6, Device(a), 6, far, 1)
            near(used @ far.back(), x, kind)
            far = Device(x)
            call(f"cublas{letter}trmv_v2", fill, transpose, diagonal, 6, Device(a), 6, far, 1)
            near(far.back(), used @ x, kind)
    for fill, transpose in itertools.product(range(2), range(2)):
        a, c = made(kind, *((6, 3) if transpose == 0 else (3, 6))), made(kind, 6, 6)
        half = np.triu if fill == 1 else np.tril
        far = Device(c)
        call(f"cublas{letter}syrk_v2", fill, transpose, 6, 3, alpha, Device(a), a.shape[0], beta, far, 6)
        whole = turned(a, transpose)
        near(half(far.back()), half(alpha * (whole @ whole.T) + beta * c), kind)
        other = np.tril(far.back(), -1) if fill == 1 else np.triu(far.back(), 1)
        assert np.array_equal(other, np.tril(c, -1) if fill == 1 else np.triu(c, 1)), "the other half stays"
        if letter in "CZ":
            real, hermitian = real_of(kind), 2 * transpose
            c = c + c.conj().T
            far = Device(c)
            call(f"cublas{letter}herk_v2", fill, hermitian, 6, 3, one(1.5, real), Device(a), a.shape[0], one(0.5, real), far, 6)
            whole = turned(a, hermitian)
            near(half(far.back()), half(1.5 * (whole @ whole.conj().T) + 0.5 * c), kind)
    for side, fill in itertools.product(range(2), range(2)):
        order = 6 if side == 0 else 4
        a, b, c = made(kind, order, order), made(kind, 6, 4), made(kind, 6, 4)
        half, rest = (np.triu(a), np.triu(a, 1)) if fill == 1 else (np.tril(a), np.tril(a, -1))
        wholes = [("symm", half + rest.T)]
        if letter in "CZ":
            plain = half - np.diag(np.diag(half)) + np.diag(np.diag(half).real)
            wholes.append(("hemm", plain + rest.conj().T))
        for name, whole in wholes:
            far = Device(c)
            call(f"cublas{letter}{name}_v2", side, fill, 6, 4, alpha, Device(a), order, Device(b), 6, beta, far, 6)
            near(far.back(), alpha * (whole @ b if side == 0 else b @ whole) + beta * c, kind)


def pointers(arrays):
    """An array of addresses, in memory of the device."""
    return Device(np.array([array.address.value for array in arrays], dtype=np.uint64))


def decompositions(letter, kind):
    """Many matrices at once: triangles, systems, inverses, reflections, least squares."""
    n, count = 6, 3
    matrices = [made(kind, n, n) for _ in range(count)]
    for is_exchanged in (True, False):
        if not is_exchanged:
            matrices = [matrix + 5 * np.eye(n, dtype=kind) for matrix in matrices]
        far = [Device(matrix) for matrix in matrices]
        array, info = pointers(far), Device(np.full(count, 9, np.int32))
        pivots = Device(np.zeros((count, n), np.int32).ravel()) if is_exchanged else None
        call(f"cublas{letter}getrfBatched", n, array, n, pivots, info, count)
        assert list(info.back()) == [0] * count
        for transpose in range(3):
            sides = [made(kind, n, 2) for _ in range(count)]
            solved, told = [Device(side) for side in sides], one(9, np.int32)
            call(f"cublas{letter}getrsBatched", transpose, n, 2, array, n, pivots, pointers(solved), n, told, count)
            assert told[0] == 0
            for matrix, side, found in zip(matrices, sides, solved):
                near(turned(matrix, transpose) @ found.back(), side, kind)
        inverses = [Device(np.zeros((n, n), kind)) for _ in range(count)]
        call(f"cublas{letter}getriBatched", n, array, n, pivots, pointers(inverses), n, info, count)
        for matrix, inverse in zip(matrices, inverses):
            near(matrix @ inverse.back(), np.eye(n), kind)
    singular, info = Device(np.zeros((2, 2), kind)), Device(np.zeros(1, np.int32))
    call(f"cublas{letter}getrfBatched", 2, pointers([singular]), 2, Device(np.zeros(2, np.int32)), info, 1)
    assert info.back()[0] == 1
    tall = [made(kind, 7, 4) for _ in range(count)]
    far, factors, told = [Device(matrix) for matrix in tall], [Device(np.zeros(4, kind)) for _ in range(count)], one(9, np.int32)
    call(f"cublas{letter}geqrfBatched", 7, 4, pointers(far), 7, pointers(factors), told, count)
    for matrix, found, factor in zip(tall, far, factors):
        raw, right = np.linalg.qr(matrix, mode="raw")
        near(found.back(), raw.T, kind)
        near(factor.back(), right, kind)
    far, sides = [Device(matrix) for matrix in tall], [made(kind, 7, 2) for _ in range(count)]
    nearest, info = [Device(side) for side in sides], Device(np.full(count, 9, np.int32))
    call(f"cublas{letter}gelsBatched", 0, 7, 4, 2, pointers(far), 7, pointers(nearest), 7, told, info, count)
    for matrix, side, found in zip(tall, sides, nearest):
        near(found.back()[:4], np.linalg.lstsq(matrix, side, rcond=None)[0], kind)
    # Triangular systems by arrays of addresses.
    a, b = made(kind, n, n) + 5 * np.eye(n, dtype=kind), made(kind, n, 3)
    found = Device(b)
    call(f"cublas{letter}trsmBatched", 0, 0, 0, 0, n, 3, one(2, kind), pointers([Device(a)]), n, pointers([found]), n, 1)
    near(np.tril(a) @ found.back(), 2 * b, kind)


def in_memory(letter, kind):
    """Scalars and results in memory of the device."""
    good(BLAS.cublasSetPointerMode_v2(HANDLE, 1))
    x, y = made(kind, 9), made(kind, 9)
    far, result = Device(y), Device(np.zeros(1, kind))
    call(f"cublas{letter}axpy_v2", 9, Device(one(3, kind)), Device(x), 1, far, 1)
    call(f"cublas{letter}dot{'u' if letter in 'CZ' else ''}_v2", 9, Device(x), 1, Device(y), 1, result)
    near(far.back(), y + 3 * x, kind)
    near(result.back()[0], x @ y, kind)
    good(BLAS.cublasSetPointerMode_v2(HANDLE, 0))


def transfers():
    """Vectors with steps and parts of matrices, there and back."""
    matrix, back = made(np.float32, 8, 6), np.zeros((8, 6), np.float32, order="F")
    far = Device(np.zeros((10, 6), np.float32))
    host = np.asfortranarray(matrix)
    good(BLAS.cublasSetMatrix(5, 6, 4, host.ctypes.data_as(ctypes.c_void_p), 8, far.address, 10))
    good(BLAS.cublasGetMatrix(5, 6, 4, far.address, 10, back.ctypes.data_as(ctypes.c_void_p), 8))
    assert np.array_equal(back[:5], matrix[:5]) and not back[5:].any()
    vector, seen = made(np.float64, 20), np.zeros(10)
    far = Device(np.zeros(30))
    good(BLAS.cublasSetVector(10, 8, vector.ctypes.data_as(ctypes.c_void_p), 2, far.address, 3))
    good(BLAS.cublasGetVector(10, 8, far.address, 3, seen.ctypes.data_as(ctypes.c_void_p), 1))
    assert np.array_equal(seen, vector[::2])


good(BLAS.cublasCreate_v2(ctypes.byref(HANDLE)))
for name_of, type_of in TYPES.items():
    for part in (vectors, products, triangles, decompositions, in_memory):
        part(name_of, type_of)
transfers()
halves, other, single = made(np.float32, 64).astype(np.float16), made(np.float32, 64).astype(np.float16), one(0, np.float16)
call("cublasDotEx", 64, Device(halves), 2, 1, Device(other), 2, 1, single, 2, 0)
near(single[0], halves.astype(np.float64) @ other.astype(np.float64), np.float16)
# A matrix that is not there, and a function that is not there.
assert BLAS.cublasSgemv_v2(HANDLE, 0, -1, 5, None, None, 1, None, 1, None, None, 1) == 7
assert BLAS.cublasSrotg_v2(HANDLE, None, None, None, None) == 15
good(BLAS.cublasDestroy_v2(HANDLE))
print("right")
