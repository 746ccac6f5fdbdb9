/* Times MPI_Allreduce (f32, sum, in place) for bench/run.
 *
 *   mpirun -np N bench-openmpi SECONDS SIZE_BYTES [SIZE_BYTES ...]
 *
 * For each size: fill, barrier, a batch of calls each timed on its own, then every
 * element of the result checked; batches go on until about SECONDS are spent. The
 * batch is as long as repeated sums stay exact in f32, so checking its last result
 * checks every call in it. Rank 0 prints one JSON line for each rank and size, the
 * same as the other peers do (bench/README.md says what the fields mean).
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN = 7, SHORTEST_BATCH = 3, LONGEST_BATCH = 100, MOST_CALLS = 100000, FEWEST_CALLS = 5 };

struct summary {
    double calls, min, median, p90, mean;
};

static int rank, ranks;

/* What rank r contributes at index i is i % 7 + r; this is the sum over all ranks. */
static double summed(size_t index) {
    return (double)ranks * (double)(index % PATTERN) + ranks * (ranks - 1) / 2.0;
}

/* How often a sum can be summed again before f32 rounds (24 bits) or overflows (a power of two only moves the exponent). */
static int exact_calls(void) {
    double largest = summed(PATTERN - 1);
    double bound = (ranks & (ranks - 1)) == 0 ? 0x1p120 : 0x1p24;
    int calls = 1;
    while (calls < LONGEST_BATCH && ranks > 1 && largest * ranks < bound) {
        largest *= ranks;
        calls++;
    }
    return ranks == 1 ? LONGEST_BATCH : calls;
}

static void fill(float *data, size_t count) {
    for (size_t i = 0; i < count; i++) data[i] = (float)(i % PATTERN + (size_t)rank);
}

static void check(const float *data, size_t count, int calls) {
    double scale = 1;
    for (int i = 1; i < calls; i++) scale *= ranks;
    float expected[PATTERN];
    for (size_t i = 0; i < PATTERN; i++) expected[i] = (float)(summed(i) * scale);
    for (size_t i = 0; i < count; i++) {
        if (data[i] != expected[i % PATTERN]) {
            fprintf(stderr, "wrong result: rank %d, element %zu of %zu is %g, not %g\n", rank, i, count, data[i],
                    expected[i % PATTERN]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct summary summarise(double *seconds, int calls) {
    double total = 0;
    for (int i = 0; i < calls; i++) total += seconds[i];
    qsort(seconds, (size_t)calls, sizeof *seconds, ascending);
    return (struct summary){calls, seconds[0], seconds[calls / 2], seconds[(calls - 1) * 9 / 10], total / calls};
}

/* One batch: returns how long its calls took together on the slowest rank. */
static double batch(float *data, size_t count, int calls, double *seconds) {
    fill(data, count);
    MPI_Barrier(MPI_COMM_WORLD);
    double total = 0, slowest;
    for (int i = 0; i < calls; i++) {
        double start = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        seconds[i] = MPI_Wtime() - start;
        total += seconds[i];
    }
    check(data, count, calls);
    MPI_Allreduce(&total, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static struct summary measure(size_t bytes, double budget) {
    size_t count = bytes / sizeof(float);
    float *data = NULL;
    double *seconds = malloc((MOST_CALLS + LONGEST_BATCH) * sizeof *seconds);
    if (posix_memalign((void **)&data, 4096, bytes < 4096 ? 4096 : bytes) || !seconds) {
        fprintf(stderr, "rank %d: no memory for %zu bytes\n", rank, bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    batch(data, count, 1, seconds); /* first touch */
    double one = batch(data, count, 1, seconds);
    int longest = exact_calls(), per_batch = (int)(budget / 4 / one);
    per_batch = per_batch < SHORTEST_BATCH ? SHORTEST_BATCH : per_batch;
    per_batch = per_batch > longest ? longest : per_batch;
    batch(data, count, per_batch, seconds); /* warm-up */
    int calls = 0;
    double spent = 0;
    while (calls < FEWEST_CALLS || (spent < budget && calls < MOST_CALLS)) {
        spent += batch(data, count, per_batch, seconds + calls);
        calls += per_batch;
    }
    struct summary result = summarise(seconds, calls);
    free(seconds);
    free(data);
    return result;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3) {
        fprintf(stderr, "usage: openmpi SECONDS SIZE_BYTES...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    double budget = atof(argv[1]);
    struct summary *all = malloc((size_t)ranks * sizeof *all);
    for (int arg = 2; arg < argc; arg++) {
        size_t bytes = strtoull(argv[arg], NULL, 10);
        struct summary mine = measure(bytes, budget);
        MPI_Gather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, 0, MPI_COMM_WORLD);
        for (int r = 0; rank == 0 && r < ranks; r++) {
            printf("{\"work\": \"allreduce\", \"rank\": %d, \"bytes\": %zu, \"calls\": %.0f, \"min_us\": %.3f, "
                   "\"median_us\": %.3f, \"p90_us\": %.3f, \"mean_us\": %.3f}\n",
                   r, bytes, all[r].calls, all[r].min * 1e6, all[r].median * 1e6, all[r].p90 * 1e6, all[r].mean * 1e6);
            fflush(stdout);
        }
    }
    free(all);
    MPI_Finalize();
    return 0;
}
