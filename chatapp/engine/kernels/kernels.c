/* The leaves of a decoder's forward pass for one to a few rows: products with a weight matrix, norms,
   rotary positions, one step of attention, activations; and a block, which is made of them alone.

   Matrices of integers stand in tiles of 16 outputs. An activation x of a row is rounded to int16 by
   one scale a row, x ~ s q with |q| <= 16,000: fine enough that a few large activations leave the
   others exact to a thousandth, so nothing is rounded twice.

   int8   w[o][i] ~ scale[o] n[o][i]
          tile: for each pair of columns 16 x 2 values, y[o] = s scale[o] sum n q
   int4   w[o][i] ~ scale[o][g] n[o][i] + least[o][g] in groups g of 32 columns, n from 0 to 15
          tile: for each two pairs of columns 32 bytes, the first pair in the low halves
          y[o] = s sum_g (scale[o][g] sum n q + least[o][g] sum q)
   float  rows as they are

   What a row gives does not depend on the other rows. */

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#else
#define PAUSE()
#endif

#define OUTPUTS 16       /* of a tile */
#define GROUP 32         /* columns that share a scale in int4 */
#define LARGEST 16000    /* of a rounded activation */
#define EXACT_PAIRS 512  /* columns / 2 whose products fit an int32: 127 * 16,000 * 1,024 < 2^31 */
#if defined(__AVX512VNNI__)
#define ROWS 8 /* computed together with one reading of a tile: as many as registers hold sums of */
#else
#define ROWS 4
#endif
#define API __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

/* ---- sixteen sums at once: products of 16 x 2 weights with two activations ---- */

#if defined(__AVX512VNNI__)
typedef __m512i sums;
typedef __m512i pairs;
typedef __m512 floats;
INLINE sums no_sums(void) { return _mm512_setzero_si512(); }
INLINE pairs pairs_i8(const int8_t *n) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)n)); }
INLINE void pairs_i4(const uint8_t *n, pairs *first, pairs *second) {
  const __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)n));
  *first = _mm512_and_si512(both, _mm512_set1_epi16(15));
  *second = _mm512_srli_epi16(both, 4);
}
INLINE sums add_products(sums sum, pairs weights, const int16_t *q) {
  int32_t pair;
  memcpy(&pair, q, 4);
  return _mm512_dpwssd_epi32(sum, weights, _mm512_set1_epi32(pair));
}
INLINE sums added(sums a, sums b) { return _mm512_add_epi32(a, b); }
INLINE floats zeros(void) { return _mm512_setzero_ps(); }
INLINE floats times_plus(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE floats of_sums(sums sum) { return _mm512_cvtepi32_ps(sum); }
INLINE floats of_bfloat16(const uint16_t *x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)x)), 16));
}
INLINE floats all(float x) { return _mm512_set1_ps(x); }
INLINE void store(float *y, floats x) { _mm512_storeu_ps(y, x); }
#elif defined(__AVX2__)
typedef struct { __m256i a, b; } sums;
typedef struct { __m256i a, b; } pairs;
typedef struct { __m256 a, b; } floats;
INLINE sums no_sums(void) { return (sums){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INLINE pairs pairs_i8(const int8_t *n) {
  return (pairs){_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)n)),
                 _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(n + 16)))};
}
INLINE void pairs_i4(const uint8_t *n, pairs *first, pairs *second) {
  const __m256i low = _mm256_set1_epi16(15);
  const __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)n));
  const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(n + 16)));
  *first = (pairs){_mm256_and_si256(a, low), _mm256_and_si256(b, low)};
  *second = (pairs){_mm256_srli_epi16(a, 4), _mm256_srli_epi16(b, 4)};
}
INLINE sums add_products(sums sum, pairs weights, const int16_t *q) {
  int32_t pair;
  memcpy(&pair, q, 4);
  const __m256i both = _mm256_set1_epi32(pair);
  return (sums){_mm256_add_epi32(sum.a, _mm256_madd_epi16(weights.a, both)),
                _mm256_add_epi32(sum.b, _mm256_madd_epi16(weights.b, both))};
}
INLINE sums added(sums x, sums y) { return (sums){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
INLINE floats zeros(void) { return (floats){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE floats times_plus(floats x, floats y, floats z) {
  return (floats){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
INLINE floats of_sums(sums sum) { return (floats){_mm256_cvtepi32_ps(sum.a), _mm256_cvtepi32_ps(sum.b)}; }
INLINE __m256 of_bfloat16_half(const uint16_t *x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)x)), 16));
}
INLINE floats of_bfloat16(const uint16_t *x) { return (floats){of_bfloat16_half(x), of_bfloat16_half(x + 8)}; }
INLINE floats all(float x) { return (floats){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE void store(float *y, floats x) { _mm256_storeu_ps(y, x.a), _mm256_storeu_ps(y + 8, x.b); }
#else
typedef struct { int32_t v[OUTPUTS]; } sums;
typedef struct { int16_t v[2 * OUTPUTS]; } pairs;
typedef struct { float v[OUTPUTS]; } floats;
INLINE sums no_sums(void) { return (sums){{0}}; }
INLINE pairs pairs_i8(const int8_t *n) {
  pairs p;
  for (int i = 0; i < 2 * OUTPUTS; i++) p.v[i] = n[i];
  return p;
}
INLINE void pairs_i4(const uint8_t *n, pairs *first, pairs *second) {
  for (int i = 0; i < 2 * OUTPUTS; i++) first->v[i] = n[i] & 15, second->v[i] = n[i] >> 4;
}
INLINE sums add_products(sums sum, pairs w, const int16_t *q) {
  for (int o = 0; o < OUTPUTS; o++) sum.v[o] += w.v[2 * o] * q[0] + w.v[2 * o + 1] * q[1];
  return sum;
}
INLINE sums added(sums a, sums b) {
  for (int o = 0; o < OUTPUTS; o++) a.v[o] += b.v[o];
  return a;
}
INLINE floats zeros(void) { return (floats){{0}}; }
INLINE floats times_plus(floats a, floats b, floats c) {
  for (int o = 0; o < OUTPUTS; o++) c.v[o] = fmaf(a.v[o], b.v[o], c.v[o]);
  return c;
}
INLINE floats of_sums(sums sum) {
  floats f;
  for (int o = 0; o < OUTPUTS; o++) f.v[o] = (float)sum.v[o];
  return f;
}
INLINE floats of_bfloat16(const uint16_t *x) {
  floats f;
  for (int o = 0; o < OUTPUTS; o++) {
    const uint32_t bits = (uint32_t)x[o] << 16;
    memcpy(&f.v[o], &bits, 4);
  }
  return f;
}
INLINE floats all(float x) {
  floats f;
  for (int o = 0; o < OUTPUTS; o++) f.v[o] = x;
  return f;
}
INLINE void store(float *y, floats x) { memcpy(y, x.v, sizeof x.v); }
#endif

/* ---- threads: the caller computes too; helpers that are late are not waited for ---- */

#define MOST_HELPERS 31
#define SPINS 4000 /* some tens of microseconds; then a helper sleeps */

typedef void (*task)(void *given, int begin, int end);
static struct {
  pthread_mutex_t lock;
  pthread_cond_t wake;
  atomic_int generation, open, inside, next, sleeping;
  atomic_flag busy; /* one caller at a time has help; another computes alone meanwhile */
  int helpers, items, step;
  task run;
  void *given;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .busy = ATOMIC_FLAG_INIT};
static atomic_int threads = 1;

static void take_items(void) {
  for (;;) {
    const int begin = atomic_fetch_add(&pool.next, pool.step);
    if (begin >= pool.items) return;
    const int end = begin + pool.step;
    pool.run(pool.given, begin, end < pool.items ? end : pool.items);
  }
}

static void *help(void *nothing) {
  (void)nothing;
  int seen = 0;
  for (;;) {
    for (int spins = 0; atomic_load(&pool.generation) == seen; spins++) {
      if (spins < SPINS) {
        PAUSE();
        continue;
      }
      pthread_mutex_lock(&pool.lock);
      atomic_fetch_add(&pool.sleeping, 1);
      while (atomic_load(&pool.generation) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
      atomic_fetch_sub(&pool.sleeping, 1);
      pthread_mutex_unlock(&pool.lock);
    }
    seen = atomic_load(&pool.generation);
    atomic_fetch_add(&pool.inside, 1);
    if (atomic_load(&pool.open) == seen) take_items();
    atomic_fetch_sub(&pool.inside, 1);
  }
  return NULL;
}

/* Have `run` called for all of `items`, in parts, by this thread and those that help it. */
static void in_parallel(task run, void *given, int items) {
  const int wanted = atomic_load(&threads);
  if (wanted < 2 || items < 2 || atomic_flag_test_and_set(&pool.busy)) {
    run(given, 0, items);
    return;
  }
  while (pool.helpers < wanted - 1) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, help, NULL)) break;
    pthread_detach(thread);
    pool.helpers++;
  }
  const int step = items / (4 * wanted);
  pool.run = run, pool.given = given, pool.items = items, pool.step = step > 0 ? step : 1;
  atomic_store(&pool.next, 0);
  const int now = atomic_load(&pool.generation) + 1;
  atomic_store(&pool.open, now);
  atomic_store(&pool.generation, now);
  if (atomic_load(&pool.sleeping)) {
    pthread_mutex_lock(&pool.lock);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
  }
  take_items();
  atomic_store(&pool.open, 0);
  for (int spins = 0; atomic_load(&pool.inside); spins++)
    if (spins < SPINS) PAUSE();
    else sched_yield();
  atomic_flag_clear(&pool.busy);
}

/* Which instructions this processor has: 0 the least, 1 AVX2, 2 AVX-512 with VNNI. */
API int instructions(void) {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

API void set_threads(int count) {
  atomic_store(&threads, count < 1 ? 1 : count > MOST_HELPERS + 1 ? MOST_HELPERS + 1 : count);
}

/* ---- products ---- */

enum { FLOAT32, INT8, INT4 };

typedef struct {
  int kind, in, out;
  const void *weight;  /* out rows of floats, or tiles; outputs of tiles are padded to 16 */
  const void *scale;   /* int8: (out,) float; int4: (tiles, groups, 2, 16) bfloat16, scale and least */
  const float *bias;   /* (out,) or NULL */
} linear;

typedef struct {
  const linear *layer;
  const float *x;
  float *y;
  int rows;
  const int16_t *q;    /* (rows, in) rounded */
  const float *scale;  /* (rows,) */
  const float *sum;    /* int4: (rows, groups) of q */
} product;

INLINE void tile_i8(const int8_t *w, const int16_t *q, long stride, int count, int rows, float *y) {
  enum { CHAINS = 4 }; /* of one row, so that no sum waits for the one before */
  const int chains = rows == 1 ? CHAINS : 1;
  floats total[8];
  for (int r = 0; r < rows; r++) total[r] = zeros();
  for (int start = 0; start < count; start += EXACT_PAIRS) {
    const int stop = start + EXACT_PAIRS < count ? start + EXACT_PAIRS : count;
    sums sum[8];
    for (int r = 0; r < (rows == 1 ? CHAINS : rows); r++) sum[r] = no_sums();
    int p = start;
    for (; p + chains <= stop; p += chains)
      for (int c = 0; c < chains; c++) {
        const pairs weights = pairs_i8(w + 2 * OUTPUTS * (long)(p + c));
        for (int r = 0; r < rows; r++)
          sum[r + c] = add_products(sum[r + c], weights, q + r * stride + 2 * (p + c));
      }
    for (; p < stop; p++) {
      const pairs weights = pairs_i8(w + 2 * OUTPUTS * (long)p);
      for (int r = 0; r < rows; r++) sum[r] = add_products(sum[r], weights, q + r * stride + 2 * p);
    }
    if (rows == 1) sum[0] = added(added(sum[0], sum[1]), added(sum[2], sum[3]));
    for (int r = 0; r < rows; r++) total[r] = times_plus(of_sums(sum[r]), all(1), total[r]);
  }
  for (int r = 0; r < rows; r++) store(y + r * OUTPUTS, total[r]);
}

INLINE void tile_i4(const uint8_t *w, const uint16_t *scale, const int16_t *q, long stride, const float *sum_q,
                    int groups, int rows, float *y) {
  floats total[8];
  for (int r = 0; r < rows; r++) total[r] = zeros();
  for (int g = 0; g < groups; g++) {
    sums sum[8], other[8];
    for (int r = 0; r < rows; r++) sum[r] = other[r] = no_sums();
    for (int p = 0; p < GROUP / 4; p++, w += 2 * OUTPUTS) {
      pairs first, second;
      pairs_i4(w, &first, &second);
      for (int r = 0; r < rows; r++) {
        const int16_t *at = q + r * stride + g * GROUP + 4 * p;
        sum[r] = add_products(sum[r], first, at);
        other[r] = add_products(other[r], second, at + 2);
      }
    }
    const floats times = of_bfloat16(scale + 2 * OUTPUTS * g), least = of_bfloat16(scale + 2 * OUTPUTS * g + OUTPUTS);
    for (int r = 0; r < rows; r++) {
      total[r] = times_plus(of_sums(added(sum[r], other[r])), times, total[r]);
      total[r] = times_plus(least, all(sum_q[r * groups + g]), total[r]);
    }
  }
  for (int r = 0; r < rows; r++) store(y + r * OUTPUTS, total[r]);
}

INLINE void tile(const product *p, int tile, int row, int rows) {
  const linear *l = p->layer;
  const long in = l->in;
  float y[8 * OUTPUTS];
  const int16_t *q = p->q + row * in;
  if (l->kind == INT8) {
    tile_i8((const int8_t *)l->weight + tile * in * OUTPUTS, q, in, l->in / 2, rows, y);
  } else {
    const int groups = l->in / GROUP;
    tile_i4((const uint8_t *)l->weight + tile * in * OUTPUTS / 2, (const uint16_t *)l->scale + tile * 2L * OUTPUTS * groups,
            q, in, p->sum + row * groups, groups, rows, y);
  }
  const int first = tile * OUTPUTS, count = l->out - first < OUTPUTS ? l->out - first : OUTPUTS;
  for (int r = 0; r < rows; r++) {
    float *to = p->y + (long)(row + r) * l->out + first;
    for (int o = 0; o < count; o++) {
      float value = y[r * OUTPUTS + o] * p->scale[row + r];
      if (l->kind == INT8) value *= ((const float *)l->scale)[first + o];
      to[o] = l->bias ? value + l->bias[first + o] : value;
    }
  }
}

static void tiles(void *given, int begin, int end) {
  const product *p = given;
  for (int t = begin; t < end; t++) {
    int row = 0;
    if (ROWS == 8)
      for (; row + 8 <= p->rows; row += 8) tile(p, t, row, 8);
    for (; row + 4 <= p->rows; row += 4) tile(p, t, row, 4);
    for (; row + 2 <= p->rows; row += 2) tile(p, t, row, 2);
    for (; row < p->rows; row++) tile(p, t, row, 1);
  }
}

INLINE float dot(const float *a, const float *b, int n) {
  float sum = 0;
  for (int i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

static void rows_of_floats(void *given, int begin, int end) {
  const product *p = given;
  const linear *l = p->layer;
  for (int o = begin; o < end; o++) {
    const float *w = (const float *)l->weight + (long)o * l->in;
    for (int r = 0; r < p->rows; r++) {
      const float sum = dot(w, p->x + (long)r * l->in, l->in);
      p->y[(long)r * l->out + o] = l->bias ? sum + l->bias[o] : sum;
    }
  }
}

static void round_row(const float *x, int n, int16_t *q, float *scale, float *sum) {
  float largest = 0;
  for (int i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
  const int is_finite = largest <= 3.4e38f;
  const float times = is_finite && largest > 1e-30f ? LARGEST / largest : 0;
  for (int i = 0; i < n; i++) q[i] = (int16_t)lrintf(x[i] * times);
  *scale = is_finite ? (times > 0 ? 1 / times : 0) : NAN;
  for (int i = 0; i < n; i++) /* a row that holds no number gives none */
    if (x[i] != x[i]) *scale = NAN;
  if (sum)
    for (int g = 0; g < n / GROUP; g++) {
      int total = 0;
      for (int i = 0; i < GROUP; i++) total += q[g * GROUP + i];
      sum[g] = (float)total;
    }
}

/* y (rows, out) = x (rows, in) W^T + b. room: bytes for rounded rows, as many as linear_room says. */
API long linear_room(const linear *l, int rows) {
  return l->kind == FLOAT32 ? 0 : (long)rows * (l->in * 2L + 8 + (l->in / GROUP + 1) * 4L) + 64;
}

API void apply_linear(const linear *l, const float *x, float *y, int rows, char *room) {
  product p = {.layer = l, .x = x, .y = y, .rows = rows};
  if (l->kind == FLOAT32) {
    in_parallel(rows_of_floats, &p, l->out);
    return;
  }
  float *scale = (float *)room, *sum = scale + rows;
  const int groups = l->kind == INT4 ? l->in / GROUP : 0;
  int16_t *q = (int16_t *)(sum + (long)rows * groups);
  for (int r = 0; r < rows; r++)
    round_row(x + (long)r * l->in, l->in, q + (long)r * l->in, scale + r, groups ? sum + (long)r * groups : NULL);
  p.q = q, p.scale = scale, p.sum = sum;
  in_parallel(tiles, &p, (l->out + OUTPUTS - 1) / OUTPUTS);
}

/* ---- norms, positions, activations ---- */

typedef struct {
  const float *weight, *bias; /* bias: NULL for an RMSNorm */
  float epsilon;
} norm;

/* y = (x - mean) / sqrt(var + epsilon) weight + bias, or x / sqrt(mean(x^2) + epsilon) weight. */
API void apply_norm(const norm *f, const float *x, float *y, int rows, int n) {
  for (int r = 0; r < rows; r++, x += n, y += n) {
    float mean = 0, square = 0;
    if (f->bias) {
      for (int i = 0; i < n; i++) mean += x[i];
      mean /= (float)n;
    }
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    const float factor = 1 / sqrtf(square / (float)n + f->epsilon);
    for (int i = 0; i < n; i++) y[i] = (x[i] - mean) * factor * f->weight[i] + (f->bias ? f->bias[i] : 0);
  }
}

/* The pair (a, b) of components i and i + size / 2 becomes (a cos - b sin, b cos + a sin). */
static void turn(float *x, const float *cosines, const float *sines, int size) {
  const int half = size / 2;
  for (int i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cosines[i] - b * sines[i];
    x[i + half] = b * cosines[i] + a * sines[i];
  }
}

INLINE float exponential(float x) { /* to 2e-7, as a loop of it becomes vectors */
  x = fmaxf(fminf(x, 88.0f), -87.0f);
  const float n = rintf(x * 1.44269504f);
  const float f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1;
  const int32_t bits = ((int32_t)n + 127) << 23;
  float power;
  memcpy(&power, &bits, 4);
  return p * power;
}

enum { GELU_TANH, GELU, RELU, SILU };

/* In place; gated: x (2 n) -> act(gate) up in its first half. */
API void apply_activation(int kind, float *x, int rows, int n, int is_gated) {
  const int stride = is_gated ? 2 * n : n;
  for (int r = 0; r < rows; r++) {
    float *v = x + (long)r * stride, *to = x + (long)r * n;
    const float *up = v + n;
    switch (kind) {
      case GELU_TANH: /* half x (1 + tanh u) is x times the sigmoid of 2 u */
        for (int i = 0; i < n; i++) {
          const float u = 1.5957691216f * (v[i] + 0.044715f * v[i] * v[i] * v[i]);
          to[i] = v[i] / (1 + exponential(-u)) * (is_gated ? up[i] : 1);
        }
        break;
      case GELU:
        for (int i = 0; i < n; i++) to[i] = 0.5f * v[i] * (1 + erff(v[i] * 0.70710678f)) * (is_gated ? up[i] : 1);
        break;
      case RELU:
        for (int i = 0; i < n; i++) to[i] = (v[i] > 0 ? v[i] : v[i] * 0) * (is_gated ? up[i] : 1);
        break;
      default:
        for (int i = 0; i < n; i++) to[i] = v[i] / (1 + exponential(-v[i])) * (is_gated ? up[i] : 1);
    }
  }
}

/* ---- attention of one token a row ---- */

typedef struct {
  float *keys, *values;       /* of row 0: (key/value heads, positions, head size) */
  long row, head;             /* floats from one row's keys to the next one's, from one head's to the next */
  int heads, key_value_heads, head_size, window; /* window: 0 for none */
  float scale;
} attention;

typedef struct {
  const attention *a;
  const float *query;         /* (rows, all heads, head size), of which the first are queries */
  long stride;
  const int *at;              /* (rows,) the position of each */
  float *mixed;               /* (rows, heads, head size) */
  float *room;                /* (threads' items, positions) */
  int positions;
} mixing;

static void mix_heads(void *given, int begin, int end) {
  const mixing *m = given;
  const attention *a = m->a;
  const int size = a->head_size, shared = a->heads / a->key_value_heads;
  for (int item = begin; item < end; item++) {
    const int r = item / a->heads, h = item % a->heads;
    const float *query = m->query + r * m->stride + (long)h * size;
    const long offset = r * a->row + (h / shared) * a->head;
    const float *keys = a->keys + offset, *values = a->values + offset;
    float *scores = m->room + (long)item * m->positions, *mixed = m->mixed + ((long)r * a->heads + h) * size;
    const int last = m->at[r], first = a->window && last >= a->window ? last - a->window + 1 : 0;
    float largest = -INFINITY, sum = 0;
    for (int t = first; t <= last; t++) {
      scores[t] = a->scale * dot(query, keys + (long)t * size, size);
      largest = fmaxf(largest, scores[t]);
    }
    for (int t = first; t <= last; t++) scores[t] = exponential(scores[t] - largest);
    for (int t = first; t <= last; t++) sum += scores[t];
    memset(mixed, 0, sizeof(float) * size);
    for (int t = first; t <= last; t++)
      for (int i = 0; i < size; i++) mixed[i] += scores[t] * values[(long)t * size + i];
    for (int i = 0; i < size; i++) mixed[i] /= sum;
  }
}

/* softmax(q K^T scale) V of each row, up to its position. */
API void attend(const attention *a, const float *query, long stride, const int *at, int rows, float *mixed,
                float *room, int positions) {
  mixing m = {a, query, stride, at, mixed, room, positions};
  const long work = (long)rows * a->heads * positions * a->head_size;
  if (work < 1 << 16) mix_heads(&m, 0, rows * a->heads);
  else in_parallel(mix_heads, &m, rows * a->heads);
}

/* ---- a block ---- */

typedef struct {
  norm norm_1, norm_2, after_1, after_2, query, key; /* a weight of NULL: there is none */
  linear query_key_value, projection, expand, contract;
  attention heads;
  int width, inner, turned, activation, is_gated, is_parallel; /* turned: components that positions turn */
} block;

API long block_room(const block *b, int rows, int positions) {
  const attention *a = &b->heads;
  const long all = a->heads + 2L * a->key_value_heads;
  long widest = b->inner;
  if (b->width > widest) widest = b->width;
  if ((long)a->heads * a->head_size > widest) widest = (long)a->heads * a->head_size;
  return sizeof(float) * rows * (3L * b->width + all * a->head_size + (long)a->heads * a->head_size +
                                 (b->is_gated ? 2L : 1L) * b->inner + (long)a->heads * positions) +
         rows * (widest * 2 + 8 + (widest / GROUP + 1) * 4) + 256;
}

static void add(float *x, const float *y, long n) {
  for (long i = 0; i < n; i++) x[i] += y[i];
}

/* What a block adds to the states x (rows, width), in place. Row r is one token at position at[r], whose keys
   and values are written there; cosines, sines: (rows, turned / 2). */
API void apply_block(const block *b, float *x, int rows, const int *at, int positions, const float *cosines,
                     const float *sines, float *room) {
  const attention *a = &b->heads;
  const int size = a->head_size, queries = a->heads, shared = a->key_value_heads, all = queries + 2 * shared;
  const long width = b->width;
  float *normed = room, *added = normed + rows * width, *other = added + rows * width, *heads = other + rows * width;
  float *mixed = heads + (long)rows * all * size, *inner = mixed + (long)rows * queries * size;
  float *scores = inner + (long)rows * b->inner * (b->is_gated ? 2 : 1);
  char *rounded = (char *)(scores + (long)rows * queries * positions);

  apply_norm(&b->norm_1, x, normed, rows, b->width);
  apply_linear(&b->query_key_value, normed, heads, rows, rounded);
  for (int r = 0; r < rows; r++) {
    float *h = heads + (long)r * all * size;
    if (b->query.weight) {
      apply_norm(&b->query, h, h, queries, size);
      apply_norm(&b->key, h + queries * size, h + queries * size, shared, size);
    }
    if (b->turned)
      for (int n = 0; n < queries + shared; n++)
        turn(h + n * size, cosines + (long)r * (b->turned / 2), sines + (long)r * (b->turned / 2), b->turned);
    for (int n = 0; n < shared; n++) {
      const long to = r * a->row + n * a->head + (long)at[r] * size;
      memcpy(a->keys + to, h + (queries + n) * size, sizeof(float) * size);
      memcpy(a->values + to, h + (queries + shared + n) * size, sizeof(float) * size);
    }
  }
  attend(a, heads, (long)all * size, at, rows, mixed, scores, positions);
  apply_linear(&b->projection, mixed, added, rows, rounded);
  if (b->after_1.weight) apply_norm(&b->after_1, added, added, rows, b->width);
  if (!b->is_parallel) add(x, added, rows * width);

  apply_norm(&b->norm_2, x, normed, rows, b->width);
  apply_linear(&b->expand, normed, inner, rows, rounded);
  apply_activation(b->activation, inner, rows, b->inner, b->is_gated);
  apply_linear(&b->contract, inner, other, rows, rounded);
  if (b->after_2.weight) apply_norm(&b->after_2, other, other, rows, b->width);
  if (b->is_parallel) add(x, added, rows * width);
  add(x, other, rows * width);
}
