/* A rank that sums four bytes over all ranks with Open MPI and says so: the least that a program can be. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    float value = (float)(rank + 1), sum = 0;
    MPI_Allreduce(&value, &sum, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    printf("first allreduce: rank %d of %d, sum %.0f\n", rank, size, sum);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
