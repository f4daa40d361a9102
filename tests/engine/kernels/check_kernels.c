/* The kernels against the same formulas in plain loops of doubles, for processors that Python does
   not run on here, and for a compiler's sanitizers: exits 0 if all agree. argv[1]: random shapes. */

#include "kernels.c"

#include <stdio.h>

static uint32_t state = 1;
static int below(int n) {
  state = state * 1664525u + 1013904223u;
  return (int)((state >> 8) % (uint32_t)n);
}
static float number(void) { return (float)(below(20001) - 10000) / 5000; }

static int wrong(const char *what, double found, double expected, double allowed) {
  if (fabs(found - expected) <= allowed) return 0;
  printf("%s: %g in place of %g, off by more than %g\n", what, found, expected, allowed);
  return 1;
}

static float *numbers(long n) {
  float *x = malloc(sizeof(float) * n);
  for (long i = 0; i < n; i++) x[i] = number();
  return x;
}

static float from_bfloat16(uint16_t half) {
  const uint32_t wide = (uint32_t)half << 16;
  float x;
  memcpy(&x, &wide, 4);
  return x;
}

/* The weight w[o][i] that a layer has. */
static double weight(const linear *l, int o, int i) {
  const long tile = o / OUTPUTS, at = o % OUTPUTS, in = l->in;
  if (l->kind == FLOAT32) return ((const float *)l->weight)[o * in + i];
  if (l->kind == INT8)
    return ((const int8_t *)l->weight)[tile * in * OUTPUTS + (i / 2) * 2 * OUTPUTS + 2 * at + i % 2] *
           (double)((const float *)l->scale)[o];
  const uint8_t both = ((const uint8_t *)l->weight)[tile * in * OUTPUTS / 2 + (i / 4) * 2 * OUTPUTS + 2 * at + i % 2];
  const uint16_t *scale = (const uint16_t *)l->scale + tile * 2 * OUTPUTS * (in / GROUP) + (i / GROUP) * 2 * OUTPUTS;
  return (i % 4 < 2 ? both & 15 : both >> 4) * (double)from_bfloat16(scale[at]) + from_bfloat16(scale[OUTPUTS + at]);
}

static int check_product(int kind) {
  const int rows = 1 + below(18), out = 1 + below(70), tiles_of = (out + OUTPUTS - 1) / OUTPUTS;
  const int in = kind == INT4 ? GROUP * (1 + below(6)) : 2 * (1 + below(below(8) ? 90 : 700));
  const long weights = (long)tiles_of * OUTPUTS * in;
  uint8_t *bytes = malloc(weights);
  for (long i = 0; i < weights; i++) bytes[i] = (uint8_t)(kind == INT8 ? below(255) - 127 : below(256));
  float *floats_of = numbers(weights), *bias = numbers(out), *x = numbers((long)rows * in);
  uint16_t *halves = malloc(2 * weights);
  for (long i = 0; i < weights / GROUP * 2; i++) halves[i] = (uint16_t)(0x3D00 + below(256));
  const linear l = {kind, in, out, kind == FLOAT32 ? (void *)floats_of : bytes,
                    kind == INT8 ? (void *)floats_of : halves, below(2) ? bias : NULL};
  float *y = malloc(sizeof(float) * rows * out);
  char *room = malloc(linear_room(&l, rows) + 1);
  apply_linear(&l, x, y, rows, room);
  int errors = 0;
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < out; o++) {
      double sum = l.bias ? bias[o] : 0, reach = 0;
      for (int i = 0; i < in; i++) {
        const double term = weight(&l, o, i) * x[(long)r * in + i];
        sum += term;
        reach += kind == FLOAT32 ? fabs(term) : fabs(weight(&l, o, i)) * 2;
      }
      errors += wrong("product", y[(long)r * out + o], sum, reach * (kind == FLOAT32 ? 1e-5 : 1.0 / 16000) + 1e-5);
    }
  free(bytes), free(floats_of), free(bias), free(x), free(halves), free(y), free(room);
  return errors;
}

static int check_attention(void) {
  const int shared = 1 + below(3), heads = shared * (1 + below(3)), size = 1 + below(70), positions = 1 + below(60);
  const int rows = 1 + below(4);
  const long all = (long)shared * positions * size;
  float *keys = numbers(rows * all), *values = numbers(rows * all), *query = numbers((long)rows * heads * size);
  float *mixed = malloc(sizeof(float) * rows * heads * size), *room = malloc(sizeof(float) * rows * heads * positions);
  int at[4];
  for (int r = 0; r < rows; r++) at[r] = below(positions);
  const attention a = {keys, values, all, (long)positions * size, heads, shared, size, below(3) ? 0 : 1 + below(9), 0.3f};
  attend(&a, query, (long)heads * size, at, rows, mixed, room, positions);
  int errors = 0;
  for (int item = 0; item < rows * heads; item++) {
    const int r = item / heads, first = a.window && at[r] >= a.window ? at[r] - a.window + 1 : 0;
    const long offset = r * all + (long)(item % heads / (heads / shared)) * positions * size;
    for (int i = 0; i < size; i++) {
      double sum = 0, weights = 0;
      for (int t = first; t <= at[r]; t++) {
        double score = 0;
        for (int j = 0; j < size; j++) score += (double)query[(long)item * size + j] * keys[offset + (long)t * size + j];
        weights += exp(score * a.scale);
        sum += exp(score * a.scale) * values[offset + (long)t * size + i];
      }
      errors += wrong("attention", mixed[(long)item * size + i], sum / weights, 1e-4);
    }
  }
  free(keys), free(values), free(query), free(mixed), free(room);
  return errors;
}

static int check_norm_and_activations(void) {
  const int n = 1 + below(130);
  float *x = numbers(n), *w = numbers(n), *b = numbers(n), *y = malloc(sizeof(float) * n);
  const norm f = {w, below(2) ? b : NULL, 1e-5f};
  apply_norm(&f, x, y, 1, n);
  double mean = 0, square = 0;
  for (int i = 0; i < n; i++) mean += f.bias ? x[i] / (double)n : 0;
  for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / n;
  int errors = 0;
  for (int i = 0; i < n; i++)
    errors += wrong("norm", y[i], (x[i] - mean) / sqrt(square + 1e-5) * w[i] + (f.bias ? b[i] : 0), 1e-3);
  for (int kind = GELU_TANH; kind <= SILU; kind++) {
    apply_activation(kind, x, y, 1, n, 0);
    for (int i = 0; i < n; i++) {
      const double v = x[i], u = 0.7978845608 * (v + 0.044715 * v * v * v);
      const double expected[] = {0.5 * v * (1 + tanh(u)), 0.5 * v * (1 + erf(v / sqrt(2))), v > 0 ? v : 0, v / (1 + exp(-v))};
      errors += wrong("activation", y[i], expected[kind], 1e-5);
    }
  }
  free(x), free(w), free(b), free(y);
  return errors;
}

int main(int count, char **given) {
  int errors = 0;
  for (int n = count > 1 ? atoi(given[1]) : 20; n > 0 && !errors; n--) {
    set_threads(1 + n % 2);
    errors = check_product(FLOAT32) + check_product(INT8) + check_product(INT4) + check_attention() +
             check_norm_and_activations();
  }
  return errors > 0;
}
