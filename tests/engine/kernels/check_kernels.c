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

static const char *products[] = {"float32 product", "int8 product", "int4 product"};
static const char *blocks[] = {"float32 block", "int8 block", "int4 block"};
static struct { const char *what; double off, share; } largest[32]; /* difference; share of what is allowed */

static void remember(const char *what, double off, double share) {
  int n = 0;
  while (largest[n].what && strcmp(largest[n].what, what)) n++;
  largest[n].what = what, largest[n].off = fmax(largest[n].off, off), largest[n].share = fmax(largest[n].share, share);
}

static int wrong(const char *what, double found, double expected, double allowed) {
  remember(what, fabs(found - expected), fabs(found - expected) / allowed);
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

/* A layer with weights below about `size` and, half the time, a bias. */
static linear random_linear(int kind, int in, int out, float size) {
  const long all = (long)((out + OUTPUTS - 1) / OUTPUTS) * OUTPUTS * in;
  linear l = {.kind = kind, .in = in, .out = out, .bias = below(2) ? numbers(out) : NULL};
  if (kind == FLOAT32) {
    float *w = numbers(all);
    for (long i = 0; i < all; i++) w[i] *= size / 2;
    l.weight = w;
    return l;
  }
  uint8_t *bytes = malloc(all);
  for (long i = 0; i < all; i++) bytes[i] = (uint8_t)(kind == INT8 ? below(255) - 127 : below(256));
  l.weight = bytes;
  if (kind == INT8) {
    float *scale = numbers(out);
    for (int o = 0; o < out; o++) scale[o] *= size / 254;
    l.scale = scale;
    return l;
  }
  uint16_t *halves = malloc(2 * (all / GROUP * 2)); /* scales of 0.03 to 0.06, least of -0.25 to -0.37 */
  for (long i = 0; i < all / GROUP * 2; i++)
    halves[i] = (uint16_t)(i / OUTPUTS % 2 ? 0xBE80 + below(64) : 0x3D00 + below(128));
  l.scale = halves;
  return l;
}

static void free_linear(const linear *l) { free((void *)l->weight), free((void *)l->scale), free((void *)l->bias); }

/* y = x W^T + b; reach: of each sum, how large it could be. */
static void expect_linear(const linear *l, const double *x, double *y, double *reach, int rows) {
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < l->out; o++) {
      double sum = l->bias ? l->bias[o] : 0, most = 0;
      for (int i = 0; i < l->in; i++) {
        const double w = weight(l, o, i), term = w * x[(long)r * l->in + i];
        sum += term;
        most += l->kind == FLOAT32 ? fabs(term) : fabs(w) * 2;
      }
      y[(long)r * l->out + o] = sum;
      if (reach) reach[(long)r * l->out + o] = most;
    }
}

static double *doubles(const float *x, long n) {
  double *y = malloc(sizeof(double) * n);
  for (long i = 0; i < n; i++) y[i] = x[i];
  return y;
}

static int check_product(int kind) {
  const int rows = 1 + below(18), out = 1 + below(70);
  const int in = kind == INT4 ? GROUP * (1 + below(6)) : 2 * (1 + below(below(8) ? 90 : 700));
  const linear l = random_linear(kind, in, out, kind == FLOAT32 ? 2 : 200);
  float *x = numbers((long)rows * in), *y = malloc(sizeof(float) * rows * out);
  char *room = malloc(linear_room(&l, rows) + 1);
  apply_linear(&l, x, y, rows, room);
  double *exact = doubles(x, (long)rows * in), *sum = malloc(sizeof(double) * rows * out);
  double *reach = malloc(sizeof(double) * rows * out);
  expect_linear(&l, exact, sum, reach, rows);
  int errors = 0;
  for (int i = 0; i < rows * out; i++)
    errors += wrong(products[kind], y[i], sum[i], reach[i] * (kind == FLOAT32 ? 1e-5 : 1.0 / 16000) + 1e-5);
  free_linear(&l), free(x), free(y), free(room), free(exact), free(sum), free(reach);
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
  const attention a = {heads, shared, size, below(3) ? 0 : 1 + below(9), 0.3f};
  const tokens t = {keys, values, all, (long)positions * size, at, rows, positions};
  attend(&a, &t, query, (long)heads * size, mixed, room);
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

static double activated(int kind, double v) {
  const double u = 0.7978845608 * (v + 0.044715 * v * v * v);
  const double y[] = {0.5 * v * (1 + tanh(u)), 0.5 * v * (1 + erf(v / sqrt(2))), v > 0 ? v : 0, v / (1 + exp(-v))};
  return y[kind];
}

static norm random_norm(int n, int has_bias) { return (norm){numbers(n), has_bias ? numbers(n) : NULL, 1e-5f}; }
static void free_norm(const norm *f) { free((void *)f->weight), free((void *)f->bias); }

static void expect_norm(const norm *f, const double *x, double *y, int rows, int n) {
  if (!f->weight) {
    memmove(y, x, sizeof(double) * rows * n);
    return;
  }
  for (int r = 0; r < rows; r++, x += n, y += n) {
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++) mean += f->bias ? x[i] / n : 0;
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / n;
    for (int i = 0; i < n; i++) y[i] = (x[i] - mean) / sqrt(square + f->epsilon) * f->weight[i] + (f->bias ? f->bias[i] : 0);
  }
}

static int check_norm_and_activations(void) {
  const int n = 1 + below(130);
  float *x = numbers(n), *y = malloc(sizeof(float) * n);
  const norm f = random_norm(n, below(2));
  apply_norm(&f, x, y, 1, n);
  double *exact = doubles(x, n), *normed = malloc(sizeof(double) * n);
  expect_norm(&f, exact, normed, 1, n);
  int errors = 0;
  for (int i = 0; i < n; i++) errors += wrong("norm", y[i], normed[i], 1e-3);
  for (int kind = GELU_TANH; kind <= SILU; kind++) {
    apply_activation(kind, x, y, 1, n, 0);
    for (int i = 0; i < n; i++) errors += wrong("activation", y[i], activated(kind, x[i]), 1e-5);
  }
  free_norm(&f), free(x), free(y), free(exact), free(normed);
  return errors;
}

/* What a block adds, in doubles; keys and values of the rows are taken from and put into `keys`, `values`. */
static void expect_block(const block *b, double *x, const tokens *held, const float *cosines, const float *sines,
                         double *keys, double *values) {
  const attention *a = &b->heads;
  const int rows = held->rows, *at = held->at;
  const int size = a->head_size, all = a->heads + 2 * a->key_value_heads, half = b->turned / 2, width = b->width;
  const long wide = (long)rows * (width + all * size + 2 * b->inner + 1);
  double *normed = calloc(wide, 8), *heads = calloc(wide, 8), *mixed = calloc(wide, 8), *added = calloc(wide, 8);
  double *inner = calloc(wide, 8), *other = calloc(wide, 8);
  expect_norm(&b->norm_1, x, normed, rows, width);
  expect_linear(&b->query_key_value, normed, heads, NULL, rows);
  for (int r = 0; r < rows; r++)
    for (int n = 0; n < all; n++) {
      double *h = heads + ((long)r * all + n) * size;
      const int is_query = n < a->heads, is_key = !is_query && n < a->heads + a->key_value_heads;
      if (is_query || is_key) {
        expect_norm(is_query ? &b->query : &b->key, h, h, 1, size);
        for (int i = 0; i < half; i++) {
          const double one = h[i], two = h[i + half], c = cosines[at[r] * half + i], s = sines[at[r] * half + i];
          h[i] = one * c - two * s, h[i + half] = two * c + one * s;
        }
      }
      if (is_query) continue;
      const long to = r * held->row + (n - a->heads) % a->key_value_heads * held->head + (long)at[r] * size;
      memcpy((is_key ? keys : values) + to, h, sizeof(double) * size);
    }
  for (int r = 0; r < rows; r++)
    for (int n = 0; n < a->heads; n++) {
      const long from = r * held->row + n / (a->heads / a->key_value_heads) * held->head;
      const int first = a->window && at[r] >= a->window ? at[r] - a->window + 1 : 0;
      double *mix = mixed + ((long)r * a->heads + n) * size, weights = 0;
      for (int t = first; t <= at[r]; t++) {
        double score = 0;
        for (int i = 0; i < size; i++) score += heads[((long)r * all + n) * size + i] * keys[from + (long)t * size + i];
        score = exp(score * a->scale);
        weights += score;
        for (int i = 0; i < size; i++) mix[i] += score * values[from + (long)t * size + i];
      }
      for (int i = 0; i < size; i++) mix[i] /= weights;
    }
  expect_linear(&b->projection, mixed, added, NULL, rows);
  expect_norm(&b->after_1, added, added, rows, width);
  for (long i = 0; i < (long)rows * width; i++) other[i] = x[i] + (b->is_parallel ? 0 : added[i]);
  expect_norm(&b->norm_2, other, normed, rows, width);
  expect_linear(&b->expand, normed, inner, NULL, rows);
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < b->inner; i++) {
      const double *v = inner + (long)r * b->inner * (b->is_gated ? 2 : 1) + i;
      mixed[(long)r * b->inner + i] = activated(b->activation, *v) * (b->is_gated ? v[b->inner] : 1);
    }
  expect_linear(&b->contract, mixed, other, NULL, rows);
  expect_norm(&b->after_2, other, other, rows, width);
  for (long i = 0; i < (long)rows * width; i++) x[i] += added[i] + other[i];
  free(normed), free(heads), free(mixed), free(added), free(inner), free(other);
}

static int check_block(int kind) {
  const int shared = 1 + below(2), heads = shared * (1 + below(3)), is_batch = below(2), is_rms = below(2);
  const int rows = 1 + below(is_batch ? 5 : 18), positions = rows + below(30), has_norms = below(3) == 0;
  const int size = kind == INT4 ? GROUP : 2 * (1 + below(20)), width = kind == INT4 ? GROUP * (1 + below(3)) : 2 * (1 + below(40));
  const int inner = kind == INT4 ? GROUP * (1 + below(4)) : 2 * (1 + below(60)), is_gated = below(2);
  const long each = (long)shared * positions * size, held = each * (is_batch ? rows : 1);
  const norm none = {NULL, NULL, 0};
  block b = {.norm_1 = random_norm(width, !is_rms), .norm_2 = random_norm(width, !is_rms),
             .after_1 = has_norms ? random_norm(width, 0) : none, .after_2 = has_norms ? random_norm(width, 0) : none,
             .query = has_norms ? random_norm(size, 0) : none, .key = has_norms ? random_norm(size, 0) : none,
             .query_key_value = random_linear(kind, width, (heads + 2 * shared) * size, 0.3f),
             .projection = random_linear(kind, heads * size, width, 0.3f),
             .expand = random_linear(kind, width, is_gated ? 2 * inner : inner, 0.3f),
             .contract = random_linear(kind, inner, width, 0.3f),
             .heads = {heads, shared, size, below(3) ? 0 : 1 + below(9), 0.1f},
             .width = width, .inner = inner, .turned = below(3) ? 2 * (1 + below(size / 2)) : 0,
             .activation = below(4), .is_gated = is_gated, .is_parallel = below(2)};
  int *at = malloc(sizeof(int) * rows);
  for (int r = 0; r < rows; r++) at[r] = is_batch ? below(positions) : positions - rows + r;
  const tokens t = {numbers(held), numbers(held), is_batch ? each : 0, (long)positions * size, at, rows, positions};
  float *x = numbers((long)rows * width), *angles = numbers((long)positions * (b.turned + 1));
  float *cosines = malloc(sizeof(float) * (positions * b.turned + 1)), *sines = malloc(sizeof(float) * (positions * b.turned + 1));
  for (int i = 0; i < positions * (b.turned / 2); i++) cosines[i] = cosf(angles[i]), sines[i] = sinf(angles[i]);
  double *expected = doubles(x, (long)rows * width), *keys = doubles(t.keys, held), *values = doubles(t.values, held);
  expect_block(&b, expected, &t, cosines, sines, keys, values);
  float *room = malloc(block_room(&b, rows, positions));
  const float *const turns[] = {cosines, sines};
  apply_blocks(&b, 1, x, &t, 0, turns, room);
  const double share = kind == FLOAT32 ? 1e-4 : 5e-3; /* of the largest: what a rounded activation is off by adds up */
  double size_of_all = 1;
  for (long i = 0; i < (long)rows * width; i++) size_of_all = fmax(size_of_all, fabs(expected[i]));
  int errors = 0;
  for (long i = 0; i < (long)rows * width; i++) errors += wrong(blocks[kind], x[i], expected[i], share * size_of_all);
  for (long i = 0; i < held; i++) errors += wrong("keys", t.keys[i], keys[i], share * 10) + wrong("values", t.values[i], values[i], share * 10);
  const norm *norms[] = {&b.norm_1, &b.norm_2, &b.after_1, &b.after_2, &b.query, &b.key};
  const linear *layers[] = {&b.query_key_value, &b.projection, &b.expand, &b.contract};
  for (int n = 0; n < 6; n++) free_norm(norms[n]);
  for (int n = 0; n < 4; n++) free_linear(layers[n]);
  free(t.keys), free(t.values), free(at), free(x), free(angles), free(cosines), free(sines), free(room);
  free(expected), free(keys), free(values);
  return errors;
}

static int falling(const void *a, const void *b) { return (*(const double *)a < *(const double *)b) - (*(const double *)a > *(const double *)b); }

/* A token drawn, and the share of the kept weights before and up to it, in doubles. */
static int check_drawing(void) {
  const int n = 1 + below(400);
  float *x = numbers(n), *room = malloc(sizeof(float) * 2 * n);
  double *weights = malloc(sizeof(double) * n), *sorted = malloc(sizeof(double) * n), sum = 0, kept = 0, before = 0;
  uint8_t *seen = calloc(n, 1);
  for (int i = 0; i < n; i++) seen[i] = below(4) == 0, x[i] = below(5) ? x[i] : x[below(n)];
  const float penalty = below(2) ? 1.25f : 1;
  const sampling s = {.top_p = below(2) ? 0.05 + 0.9 * below(100) / 100 : 1, .temperature = 0.25f + (float)below(8) / 4,
                      .min_p = below(2) ? 0.1f : 0, .penalty = penalty, .relief = 1 / penalty,
                      .top_k = below(2) ? 1 + below(n + 3) : 0, .seen = below(2) ? seen : NULL};
  const double uniform = below(10000) / 10000.0;
  const int id = draw_token(&s, x, n, uniform, room);
  double most = -INFINITY, exact = 0;
  for (int i = 0; i < n; i++) {
    weights[i] = x[i] * (s.seen && seen[i] ? x[i] > 0 ? s.relief : s.penalty : 1.0);
    most = fmax(most, weights[i]), exact += exp(x[i]);
  }
  for (int i = 0; i < n; i++) sorted[i] = weights[i] = exp((weights[i] - most) / s.temperature);
  qsort(sorted, n, sizeof(double), falling);
  const int k = s.top_k && s.top_k < n ? s.top_k : n;
  for (int i = 0; i < k; i++) sum += sorted[i];
  double least = sorted[0];
  for (int i = 0; i < k && (kept < s.top_p * sum || sorted[i] == least); i++) least = sorted[i], kept += least;
  least = fmax(least, s.min_p);
  sum = 0; /* of equal ones at the border some may be dropped, so they are not compared */
  int is_tied = 0;
  for (int i = 0; i < n; i++) is_tied += fabs(weights[i] - least) <= 1e-5 * least;
  for (int i = 0; i < n; i++) sum += weights[i] >= least ? weights[i] : 0;
  for (int i = 0; i < id; i++) before += weights[i] >= least ? weights[i] : 0;
  int errors = wrong("log sum", log_sum(x, n, room), log(exact), 1e-4);
  if (is_tied <= 1) errors += wrong("draw", fmin(fmax(uniform * sum, before), before + weights[id]), uniform * sum, 1e-4 * sum);
  free(x), free(room), free(weights), free(sorted), free(seen);
  return errors;
}

/* Several tokens in one call, against the same calls one by one. */
static int check_writing(int kind) {
  enum { MOST = 5, POSITIONS = 12 };
  const int rows = 1 + below(3), heads = 1 + below(3), size = kind == INT4 ? GROUP : 2 * (1 + below(12));
  const int width = heads * size, vocabulary = 3 + below(60), is_half = below(2);
  const long each = (long)heads * POSITIONS * size, held = each * rows;
  block b = {.norm_1 = random_norm(width, 1), .norm_2 = random_norm(width, 1),
             .query_key_value = random_linear(kind, width, 3 * width, 0.3f), .projection = random_linear(kind, width, width, 0.3f),
             .expand = random_linear(kind, width, 2 * width, 0.3f), .contract = random_linear(kind, 2 * width, width, 0.3f),
             .heads = {heads, heads, size, 0, 0.2f}, .width = width, .inner = 2 * width, .turned = size};
  float *table = numbers((long)POSITIONS * size), *positions = numbers((long)POSITIONS * width);
  const float *const turns[] = {table, table};
  float *embedding = numbers((long)vocabulary * width);
  uint16_t *halves = malloc(sizeof(uint16_t) * vocabulary * width);
  for (long i = 0; i < (long)vocabulary * width; i++) halves[i] = (uint16_t)((below(2) << 15) | below(0x4400));
  const decoder d = {.blocks = &b, .count = 1, .is_half = is_half, .embedding = is_half ? (void *)halves : embedding,
                     .positions = below(2) ? positions : NULL, .turns = turns, .scale = 1.5f,
                     .last = random_norm(width, 0), .output = random_linear(kind, width, vocabulary, 0.3f)};
  int at[3], ids[3 * (MOST + 1)], errors = 0;
  double logprobs[3 * MOST], uniforms[MOST];
  sampling s[3];
  for (int r = 0; r < rows; r++) {
    at[r] = below(POSITIONS - MOST), ids[r] = below(vocabulary);
    s[r] = (sampling){.top_p = 0.9, .temperature = (float)below(2), .penalty = 1, .relief = 1, .uniforms = uniforms};
  }
  for (int i = 0; i < MOST; i++) uniforms[i] = below(1000) / 1000.0;
  tokens t = {numbers(held), numbers(held), each, (long)POSITIONS * size, at, rows, POSITIONS};
  float *keys = malloc(sizeof(float) * held), *values = malloc(sizeof(float) * held);
  memcpy(keys, t.keys, sizeof(float) * held), memcpy(values, t.values, sizeof(float) * held);
  float *room = malloc(write_room(&d, rows, POSITIONS)), *x = malloc(sizeof(float) * rows * (width + 3 * vocabulary));
  float *logits = x + rows * width, *drawing_room = logits + rows * vocabulary;
  const int written = write_tokens(&d, &t, 0, s, MOST, 1e9, ids, logprobs, room);
  errors += wrong("tokens written", written, MOST, 0.5);
  free(t.keys), free(t.values);
  t.keys = keys, t.values = values;
  for (int step = 0; step < written; step++) {
    for (int r = 0; r < rows; r++)
      for (int i = 0; i < width; i++) {
        const uint16_t half = halves[(long)ids[step * rows + r] * width + i];
        const double rest = half & 0x3FF, power = half >> 10 & 31;
        const double value = (half >> 15 ? -1 : 1) * (power > 0 ? (1 + rest / 1024) * pow(2, power - 15) : rest / 1024 * pow(2, -14));
        x[r * width + i] = (float)(is_half ? value : embedding[(long)ids[step * rows + r] * width + i]) * d.scale +
                           (d.positions ? positions[(long)at[r] * width + i] : 0);
      }
    apply_blocks(&b, 1, x, &t, 0, turns, room);
    apply_norm(&d.last, x, x, rows, width);
    apply_linear(&d.output, x, logits, rows, (char *)room);
    for (int r = 0; r < rows; r++) {
      const float *of = logits + (long)r * vocabulary;
      const int id = draw_token(s + r, of, vocabulary, uniforms[step], drawing_room);
      errors += wrong("token", ids[(step + 1) * rows + r], id, 0.5);
      errors += wrong("log-probability", logprobs[step * rows + r], of[id] - log_sum(of, vocabulary, drawing_room), 1e-4);
      at[r]++;
    }
  }
  const norm *norms[] = {&b.norm_1, &b.norm_2, &d.last};
  const linear *layers[] = {&b.query_key_value, &b.projection, &b.expand, &b.contract, &d.output};
  for (int n = 0; n < 3; n++) free_norm(norms[n]);
  for (int n = 0; n < 5; n++) free_linear(layers[n]);
  free(keys), free(values), free(room), free(x), free(table), free(positions), free(embedding), free(halves);
  return errors;
}

int main(int count, char **given) {
  int errors = 0;
  for (int n = count > 1 ? atoi(given[1]) : 20; n > 0 && !errors; n--) {
    set_threads(1 + n % 2);
    errors = check_product(FLOAT32) + check_product(INT8) + check_product(INT4) + check_attention() +
             check_norm_and_activations() + check_block(FLOAT32) + check_block(INT8) + check_block(INT4) +
             check_drawing() + check_writing(FLOAT32) + check_writing(INT8) + check_writing(INT4);
  }
  for (int n = 0; largest[n].what; n++)
    printf("%-16s off by %.2g at most, %.2g of what is allowed\n", largest[n].what, largest[n].off, largest[n].share);
  return errors > 0;
}
