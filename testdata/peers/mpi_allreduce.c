/* MPI_Allreduce of float sums, for comparison with `runtime bench comm`.
 *
 *   mpicc -O3 -o mpi_allreduce mpi_allreduce.c
 *   mpirun -np 2 ./mpi_allreduce 0.3 4096 1048576     sizes in bytes
 *   mpirun -np 2 ./mpi_allreduce 0.3                  sizes from standard input, one per line
 *
 * Each size is answered by one line of JSON: {"bytes": ..., "seconds": ..., "best": ...}: the median over the repetitions of
 * the slowest rank's time, and the least of them. The first argument is the time to spend on each size.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int cmp(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double measure(long bytes, double seconds, double *best) {
    int n = bytes < 4 ? 1 : (int)(bytes / 4);
    float *x = malloc(4L * n);
    for (int i = 0; i < n; i++) x[i] = 1;
    MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double t = MPI_Wtime();
    for (int i = 0; i < 2; i++) MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double once = (MPI_Wtime() - t) / 2;
    MPI_Bcast(&once, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    double want = seconds / (once > 1e-7 ? once : 1e-7);
    int reps = want < 5 ? 5 : want > 2000 ? 2000 : (int)want;
    double *times = malloc(sizeof(double) * reps);
    for (int i = 0; i < reps; i++) {
        t = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        times[i] = MPI_Wtime() - t;
    }
    MPI_Allreduce(MPI_IN_PLACE, times, reps, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(times, reps, sizeof(double), cmp);
    double median = times[reps / 2];
    *best = times[0];
    free(times);
    free(x);
    return median;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double seconds = argc > 1 ? atof(argv[1]) : 0.3;
    if (rank == 0 && argc <= 2) {
        printf("{\"ready\": true}\n");
        fflush(stdout);
    }
    for (int i = 2;; i++) {
        long bytes = -1;
        if (rank == 0) {
            char line[64];
            if (argc > 2)
                bytes = i < argc ? atol(argv[i]) : -1;
            else if (fgets(line, sizeof line, stdin))
                bytes = atol(line);
        }
        MPI_Request told; /* wait for the next size without taking a core from whoever measures meanwhile */
        int done = 0;
        MPI_Ibcast(&bytes, 1, MPI_LONG, 0, MPI_COMM_WORLD, &told);
        for (MPI_Test(&told, &done, MPI_STATUS_IGNORE); !done; MPI_Test(&told, &done, MPI_STATUS_IGNORE)) usleep(2000);
        if (bytes < 0) break;
        double best, s = measure(bytes, seconds, &best);
        if (rank == 0) {
            printf("{\"bytes\": %ld, \"seconds\": %.9f, \"best\": %.9f}\n", bytes, s, best);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
