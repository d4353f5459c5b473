#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Linear regression with momentum, in plain C. docs/from-trainer-to-map.md sweeps it. */
enum { NUM_ROWS = 256, NUM_COLUMNS = 4 };

static double uniform(void) { return 2.0 * rand() / RAND_MAX - 1.0; }

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: train LR MOMENTUM SEED STEPS\n"), 2;
    double lr = atof(argv[1]), momentum = atof(argv[2]);
    srand(atoi(argv[3]));
    double x[NUM_ROWS][NUM_COLUMNS], y[NUM_ROWS], w[NUM_COLUMNS] = {0}, v[NUM_COLUMNS] = {0};
    for (int i = 0; i < NUM_ROWS; i++) {
        y[i] = 0.1 * uniform();
        for (int j = 0; j < NUM_COLUMNS; j++) y[i] += (j + 1) * (x[i][j] = uniform());
    }
    for (int step = 0; step < atoi(argv[4]); step++) {
        double loss = 0, norm = 0, gradient[NUM_COLUMNS] = {0};
        for (int i = 0; i < NUM_ROWS; i++) {
            double error = -y[i];
            for (int j = 0; j < NUM_COLUMNS; j++) error += w[j] * x[i][j];
            for (int j = 0; j < NUM_COLUMNS; j++) gradient[j] += 2 * error * x[i][j] / NUM_ROWS;
            loss += error * error / NUM_ROWS;
        }
        for (int j = 0; j < NUM_COLUMNS; j++) {
            norm += gradient[j] * gradient[j];
            v[j] = momentum * v[j] + gradient[j];
            w[j] -= lr * v[j];
        }
        printf("step %d: loss %.6f, grad_norm %.6f\n", step, loss, sqrt(norm));
    }
    return 0;
}
