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
   float  rows as they are; in halves, rows of float16, whose values a float has exactly: half as much to read

   What a row gives does not depend on the other rows.

   And the next token: its logits, how it is drawn from them, and both again and again in one call. */

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define PAUSE() _mm_pause()
#elif defined(__aarch64__)
#include <arm_neon.h>
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE()
#endif

#define OUTPUTS 16       /* of a tile */
#define GROUP 32         /* columns that share a scale in int4 */
#define LARGEST 16000    /* of a rounded activation */
#define EXACT_PAIRS 512  /* columns / 2 whose products fit an int32: 127 * 16,000 * 1,024 < 2^31 */
#define API __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#ifdef __AVX512VNNI__
#define UNROLL_WIDE UNROLL
#else /* registers are too few for what an unrolled loop keeps in them */
#define UNROLL_WIDE
#endif

/* ---- vectors ---- */

/* BYTES: of a vector. ROWS: computed with one reading of a tile, as many as registers hold sums of. */
#if defined(__AVX512VNNI__)
#define BYTES 64
#define ROWS 16
#elif defined(__AVX2__)
#define BYTES 32
#define ROWS 4
#else
#define BYTES 16
#define ROWS 2
#endif
#define LANES (BYTES / 4)
#define VECTORS (OUTPUTS / LANES) /* of a tile */
#define VECTOR(type, bytes) type __attribute__((vector_size(bytes)))

typedef VECTOR(float, BYTES) floats;
typedef VECTOR(int32_t, BYTES) ints;
typedef VECTOR(uint32_t, BYTES) bits;
typedef VECTOR(int16_t, BYTES) pairs; /* LANES x 2 numbers */

INLINE floats all(float x) { return x - (floats){0}; }
INLINE floats load(const float *x) {
  floats v;
  memcpy(&v, x, BYTES);
  return v;
}
INLINE void store(float *y, floats x) { memcpy(y, &x, BYTES); }
INLINE floats of_bfloat16(bits halves) { return (floats)(halves << 16); }
#if BYTES == 64 /* compilers take two steps of what is one instruction */
INLINE pairs load_int8(const int8_t *n) { return (pairs)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)n)); }
INLINE pairs load_uint8(const uint8_t *n) { return (pairs)_mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)n)); }
INLINE floats load_bfloat16(const uint16_t *x) {
  return of_bfloat16((bits)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)x)));
}
#elif BYTES == 32
INLINE pairs load_int8(const int8_t *n) { return (pairs)_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)n)); }
INLINE pairs load_uint8(const uint8_t *n) { return (pairs)_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)n)); }
INLINE floats load_bfloat16(const uint16_t *x) {
  return of_bfloat16((bits)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)x)));
}
#else
INLINE floats load_bfloat16(const uint16_t *x) {
  VECTOR(uint16_t, BYTES / 2) v;
  memcpy(&v, x, BYTES / 2);
  return of_bfloat16(__builtin_convertvector(v, bits));
}
INLINE pairs load_int8(const int8_t *n) {
  VECTOR(int8_t, BYTES / 2) v;
  memcpy(&v, n, BYTES / 2);
  return __builtin_convertvector(v, pairs);
}
INLINE pairs load_uint8(const uint8_t *n) {
  VECTOR(uint8_t, BYTES / 2) v;
  memcpy(&v, n, BYTES / 2);
  return __builtin_convertvector(v, pairs);
}
#endif
#if BYTES == 64
#define HAS_HALVES 1
INLINE floats load_half(const uint16_t *x) { return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)x)); }
#elif BYTES == 32
#define HAS_HALVES 1
INLINE floats load_half(const uint16_t *x) { return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const void *)x)); }
#else /* to take it apart by shifts is slower than to read a float */
#define HAS_HALVES 0
INLINE floats load_half(const uint16_t *x) { return all((float)*x); }
#endif
static float of_half(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7FFFu;
  if (rest < 0x400) return (sign ? -1.0f : 1.0f) * (float)rest * 5.9604644775390625e-8f; /* units of 2^-24 */
  const uint32_t raised = sign | ((rest << 13) + (112u << 23));
  float x;
  memcpy(&x, &raised, 4);
  return x;
}
INLINE pairs all_pairs(const int16_t *q) {
  int32_t pair;
  memcpy(&pair, q, 4);
  return (pairs)(pair - (ints){0});
}

/* sums: of products of two numbers in each lane. add_products: sum += w[0] q[0] + w[1] q[1]. */
#if defined(__aarch64__)
typedef struct { int32x4_t low, high; } sums;
INLINE sums add_products(sums sum, pairs w, pairs q) {
  return (sums){vmlal_s16(sum.low, vget_low_s16((int16x8_t)w), vget_low_s16((int16x8_t)q)),
                vmlal_high_s16(sum.high, (int16x8_t)w, (int16x8_t)q)};
}
INLINE ints sums_of_lanes(sums sum) { return (ints)vpaddq_s32(sum.low, sum.high); }
INLINE float total_of(floats x) { return vaddvq_f32((float32x4_t)x); }
#else
typedef struct { ints lanes; } sums;
INLINE ints sums_of_lanes(sums sum) { return sum.lanes; }
#if BYTES == 64
INLINE sums add_products(sums sum, pairs w, pairs q) {
  return (sums){(ints)_mm512_dpwssd_epi32((__m512i)sum.lanes, (__m512i)w, (__m512i)q)};
}
INLINE float total_of(floats x) { return _mm512_reduce_add_ps((__m512)x); }
#elif defined(__x86_64__)
#if BYTES == 32
INLINE sums add_products(sums sum, pairs w, pairs q) {
  return (sums){sum.lanes + (ints)_mm256_madd_epi16((__m256i)w, (__m256i)q)};
}
INLINE __m128 half_sums(floats x) {
  return _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
}
#else
INLINE sums add_products(sums sum, pairs w, pairs q) {
  return (sums){sum.lanes + (ints)_mm_madd_epi16((__m128i)w, (__m128i)q)};
}
INLINE __m128 half_sums(floats x) { return (__m128)x; }
#endif
INLINE float total_of(floats x) {
  const __m128 four = half_sums(x), two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
#else /* any other processor */
INLINE sums add_products(sums sum, pairs w, pairs q) {
  for (int i = 0; i < LANES; i++) sum.lanes[i] += w[2 * i] * q[2 * i] + w[2 * i + 1] * q[2 * i + 1];
  return sum;
}
INLINE float total_of(floats x) { return (x[0] + x[1]) + (x[2] + x[3]); }
#endif
#endif

/* ---- threads: the caller computes too; helpers that are late are not waited for ---- */

#define MOST_HELPERS 31
#define LEAST_WORK (1 << 16)
#define SPINS 4000 /* some tens of microseconds; then a helper sleeps */

typedef void (*task)(void *given, int begin, int end);
static struct {
  pthread_mutex_t lock;
  pthread_cond_t wake;
  atomic_int generation, open, inside, next, sleeping;
  atomic_flag busy; /* one caller at a time has help; another computes alone meanwhile */
  int helpers, items, shares;
  task run;
  void *given;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .busy = ATOMIC_FLAG_INIT};
static atomic_int threads = 1;

/* Parts become smaller towards the end, so that all threads end at the same time: few are large enough to be read
   at the memory's speed, and no thread waits for a large one. */
static void take_items(void) {
  int begin = atomic_load(&pool.next);
  while (begin < pool.items) {
    const int part = (pool.items - begin) / pool.shares, end = begin + (part > 0 ? part : 1);
    if (!atomic_compare_exchange_weak(&pool.next, &begin, end)) continue;
    pool.run(pool.given, begin, end);
    begin = atomic_load(&pool.next);
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

/* Have `run` called for all of `items`, in parts, by this thread and those that help it.
   work: multiplications in all; few are done sooner than help comes. */
static void in_parallel(task run, void *given, int items, long work) {
  const int wanted = atomic_load(&threads);
  if (wanted < 2 || items < 2 || work < LEAST_WORK || atomic_flag_test_and_set(&pool.busy)) {
    run(given, 0, items);
    return;
  }
  while (pool.helpers < wanted - 1) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, help, NULL)) break;
    pthread_detach(thread);
    pool.helpers++;
  }
  pool.run = run, pool.given = given, pool.items = items, pool.shares = 2 * wanted;
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

/* Which instructions the processor and the system have: 0 the least, 1 AVX2, 2 AVX-512 with VNNI. They are read
   from CPUID, because __builtin_cpu_supports answers no to everything in what zig compiles. */
API int instructions(void) {
#if defined(__x86_64__)
  enum { FMA = 1 << 12, HALVES = 1 << 29, SAVED = 1 << 27, AVX_STATE = 0x06, AVX512_STATE = 0xE6 };
  const unsigned avx2 = 1u << 5, foundation_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, vnni = 1u << 11;
  unsigned a, b, c, d, state;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & FMA) || !(c & HALVES) || !(c & SAVED)) return 0;
  __asm__ volatile("xgetbv" : "=a"(state), "=d"(d) : "c"(0)); /* the registers that the system saves */
  if ((state & AVX_STATE) != AVX_STATE || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & avx2)) return 0;
  const int is_wide = (state & AVX512_STATE) == AVX512_STATE && (b & foundation_dq_bw_vl) == foundation_dq_bw_vl;
  return is_wide && c & vnni ? 2 : 1;
#else
  return 0;
#endif
}

API void set_threads(int count) {
  atomic_store(&threads, count < 1 ? 1 : count > MOST_HELPERS + 1 ? MOST_HELPERS + 1 : count);
}

/* ---- products ---- */

enum { FLOAT32, INT8, INT4, FLOAT16 };

API int has_halves(void) { return HAS_HALVES; }

typedef struct {
  int kind, in, out;
  const void *weight;  /* out rows of floats or halves, or tiles; outputs of tiles are padded to 16 */
  const void *scale;   /* int8: (out,) float; int4: (tiles, groups, 2, 16) bfloat16, scale and least */
  const float *bias;   /* (out,) or NULL */
} linear;

typedef struct {
  const linear *layer;
  const float *x;
  float *y;
  int rows;
  int16_t *q;          /* (rows, in) rounded */
  float *scale;        /* (rows,) */
  float *sum;          /* int4: (rows, groups) of q; else NULL */
} product;

/* Memory is read ahead when a tile is read for the first time: further than a processor does by itself. */
INLINE void prefetch(const void *at) { __builtin_prefetch((const char *)at + 8192); }

/* y (rows, 16) = the sums of one tile. Where sums wait for the ones before, chains of them alternate. */
INLINE void tile_i8(const int8_t *w, const int16_t *q, long stride, int count, int rows, int is_first, float *y) {
  const int chains = BYTES == 64 && rows < 8 ? 8 / rows : 1, steps = chains < 2 ? 2 : chains;
  floats total[ROWS][VECTORS] = {0};
  for (int start = 0; start < count; start += EXACT_PAIRS) {
    const int stop = start + EXACT_PAIRS < count ? start + EXACT_PAIRS : count;
    sums sum[ROWS < 8 ? 8 : ROWS][VECTORS] = {0};
    int p = start;
    for (; p + steps <= stop; p += steps) {
      if (is_first)
        UNROLL for (int c = 0; c < steps; c += 2) prefetch(w + 2 * OUTPUTS * (long)(p + c));
      UNROLL for (int c = 0; c < steps; c++)
        UNROLL for (int v = 0; v < VECTORS; v++) {
          const pairs weights = load_int8(w + 2 * OUTPUTS * (long)(p + c) + 2 * LANES * v);
          UNROLL for (int r = 0; r < rows; r++)
            sum[c % chains * rows + r][v] =
                add_products(sum[c % chains * rows + r][v], weights, all_pairs(q + r * stride + 2 * (p + c)));
        }
    }
    for (; p < stop; p++)
      UNROLL for (int v = 0; v < VECTORS; v++) {
        const pairs weights = load_int8(w + 2 * OUTPUTS * (long)p + 2 * LANES * v);
        UNROLL for (int r = 0; r < rows; r++)
          sum[r][v] = add_products(sum[r][v], weights, all_pairs(q + r * stride + 2 * p));
      }
    UNROLL for (int r = 0; r < rows; r++)
      UNROLL for (int v = 0; v < VECTORS; v++) {
        ints lanes = sums_of_lanes(sum[r][v]);
        UNROLL for (int c = 1; c < chains; c++) lanes += sums_of_lanes(sum[c * rows + r][v]);
        total[r][v] += __builtin_convertvector(lanes, floats);
      }
  }
  UNROLL for (int r = 0; r < rows; r++)
    UNROLL for (int v = 0; v < VECTORS; v++) store(y + r * OUTPUTS + v * LANES, total[r][v]);
}

INLINE void tile_i4(const uint8_t *w, const uint16_t *scale, const int16_t *q, long stride, const float *sum_q,
                    int groups, int rows, int is_first, float *y) {
  floats total[ROWS][VECTORS] = {0};
  const int chains = BYTES == 64 && rows < 8 ? 2 : 1;
  for (int g = 0; g < groups; g++, w += OUTPUTS * GROUP / 2, q += GROUP, scale += 2 * OUTPUTS) {
    sums sum[2][VECTORS][ROWS] = {0};
    if (is_first) {
      UNROLL for (int p = 0; p < GROUP / 4; p += 2) prefetch(w + 2 * OUTPUTS * p);
      prefetch(scale);
    }
    UNROLL_WIDE for (int p = 0; p < GROUP / 4; p++)
      UNROLL for (int v = 0; v < VECTORS; v++) {
        const pairs both = load_uint8(w + 2 * OUTPUTS * p + 2 * LANES * v);
        UNROLL for (int r = 0; r < rows; r++) {
          const int16_t *at = q + r * stride + 4 * p;
          sum[0][v][r] = add_products(sum[0][v][r], both & 15, all_pairs(at));
          sum[chains - 1][v][r] = add_products(sum[chains - 1][v][r], both >> 4, all_pairs(at + 2));
        }
      }
    UNROLL for (int v = 0; v < VECTORS; v++) {
      const floats times = load_bfloat16(scale + LANES * v), least = load_bfloat16(scale + OUTPUTS + LANES * v);
      UNROLL for (int r = 0; r < rows; r++) {
        ints lanes = sums_of_lanes(sum[0][v][r]);
        if (chains == 2) lanes += sums_of_lanes(sum[1][v][r]);
        total[r][v] += __builtin_convertvector(lanes, floats) * times;
        total[r][v] += least * sum_q[r * groups + g];
      }
    }
  }
  UNROLL for (int r = 0; r < rows; r++)
    UNROLL for (int v = 0; v < VECTORS; v++) store(y + r * OUTPUTS + v * LANES, total[r][v]);
}

INLINE void tile(const product *p, int tile, int row, int rows) {
  const linear *l = p->layer;
  const long in = l->in;
  float y[ROWS * OUTPUTS];
  const int16_t *q = p->q + row * in;
  if (l->kind == INT8) {
    tile_i8((const int8_t *)l->weight + tile * in * OUTPUTS, q, in, l->in / 2, rows, row == 0, y);
  } else {
    const int groups = l->in / GROUP;
    tile_i4((const uint8_t *)l->weight + tile * in * OUTPUTS / 2, (const uint16_t *)l->scale + tile * 2L * OUTPUTS * groups,
            q, in, p->sum + row * groups, groups, rows, row == 0, y);
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
#if ROWS == 16
    for (; row + 16 <= p->rows; row += 16) tile(p, t, row, 16);
    for (; row + 8 <= p->rows; row += 8) tile(p, t, row, 8);
#endif
#if ROWS >= 4
    for (; row + 4 <= p->rows; row += 4) tile(p, t, row, 4);
#endif
    for (; row + 2 <= p->rows; row += 2) tile(p, t, row, 2);
    for (; row < p->rows; row++) tile(p, t, row, 1);
  }
}

/* y[r][o] = w[o] . x[r] for a few rows of each, n numbers long; y_stride: floats from one r to the next. w: of halves
   if is_half, else of floats. */
INLINE void dots(const void *w, int is_half, const float *x, long x_stride, int n, int outputs, int rows, float *y, long y_stride) {
  floats sum[4][4] = {0};
  int i = 0;
  for (; i + LANES <= n; i += LANES) {
    floats weights[4];
    UNROLL for (int o = 0; o < outputs; o++)
      weights[o] = is_half ? load_half((const uint16_t *)w + (long)o * n + i) : load((const float *)w + (long)o * n + i);
    UNROLL for (int r = 0; r < rows; r++) {
      const floats state = load(x + r * x_stride + i);
      UNROLL for (int o = 0; o < outputs; o++) sum[o][r] += weights[o] * state;
    }
  }
  UNROLL for (int o = 0; o < outputs; o++)
    UNROLL for (int r = 0; r < rows; r++) {
      float rest = 0;
      for (int j = i; j < n; j++) {
        const long at = (long)o * n + j;
        rest += (is_half ? of_half(((const uint16_t *)w)[at]) : ((const float *)w)[at]) * x[r * x_stride + j];
      }
      y[r * y_stride + o] = total_of(sum[o][r]) + rest;
    }
}

/* The same for any number of rows of w (outputs, n) and of x. */
INLINE void dots_of(const void *w, int is_half, const float *x, long x_stride, int n, int outputs, int rows, float *y,
                    long y_stride) {
  enum { WIDE = BYTES == 64 || LANES < 8 ? 4 : 2 }; /* as registers allow */
  int o = 0;
  for (; o + WIDE <= outputs; o += WIDE) {
    const char *of = (const char *)w + (long)o * n * (is_half ? 2 : 4);
    int r = 0;
    for (; r + 4 <= rows; r += 4) dots(of, is_half, x + r * x_stride, x_stride, n, WIDE, 4, y + r * y_stride + o, y_stride);
    for (; r < rows; r++) dots(of, is_half, x + r * x_stride, x_stride, n, WIDE, 1, y + r * y_stride + o, y_stride);
  }
  for (; o < outputs; o++)
    for (int r = 0; r < rows; r++)
      dots((const char *)w + (long)o * n * (is_half ? 2 : 4), is_half, x + r * x_stride, x_stride, n, 1, 1,
           y + r * y_stride + o, y_stride);
}

static void all_dots(const float *w, const float *x, long x_stride, int n, int outputs, int rows, float *y, long y_stride) {
  dots_of(w, 0, x, x_stride, n, outputs, rows, y, y_stride);
}

static void rows_of_floats(void *given, int begin, int end) {
  const product *p = given;
  const linear *l = p->layer;
  const long from = (long)begin * l->in;
  if (HAS_HALVES && l->kind == FLOAT16)
    dots_of((const uint16_t *)l->weight + from, 1, p->x, l->in, l->in, end - begin, p->rows, p->y + begin, l->out);
  else all_dots((const float *)l->weight + from, p->x, l->in, l->in, end - begin, p->rows, p->y + begin, l->out);
  if (l->bias)
    for (int r = 0; r < p->rows; r++)
      for (int o = begin; o < end; o++) p->y[(long)r * l->out + o] += l->bias[o];
}

INLINE int32_t nearest(float x) { /* for |x| < 2^22: the last bits of a float whose unit is 1 */
  const float shifted = x + 12582912.0f;
  int32_t number;
  memcpy(&number, &shifted, 4);
  return number - 0x4B400000;
}

static void round_row(const float *x, int n, int16_t *q, float *scale, float *sum) {
  float largest = 0;
  int is_number = 1;
  for (int i = 0; i < n; i++) {
    const float size = fabsf(x[i]);
    largest = size > largest ? size : largest;
    is_number &= size <= 3.4e38f;
  }
  const float times = is_number && largest > 1e-30f ? LARGEST / largest : 0;
  *scale = !is_number ? NAN : times > 0 ? 1 / times : 0; /* a row that holds no number gives none */
  for (int i = 0; i < n; i++) q[i] = is_number ? (int16_t)nearest(x[i] * times) : 0;
  if (sum)
    for (int g = 0; g < n / GROUP; g++) {
      int total = 0;
      for (int i = 0; i < GROUP; i++) total += q[g * GROUP + i];
      sum[g] = (float)total;
    }
}

static void round_rows(void *given, int begin, int end) {
  const product *p = given;
  const long in = p->layer->in;
  for (int r = begin; r < end; r++)
    round_row(p->x + r * in, (int)in, p->q + r * in, p->scale + r, p->sum ? p->sum + r * (in / GROUP) : NULL);
}

/* y (rows, out) = x (rows, in) W^T + b. room: bytes for rounded rows, as many as linear_room says. */
API long linear_room(const linear *l, int rows) {
  return l->kind == FLOAT32 || l->kind == FLOAT16 ? 0 : (long)rows * (l->in * 2L + 8 + (l->in / GROUP + 1) * 4L) + 64;
}

API void apply_linear(const linear *l, const float *x, float *y, int rows, char *room) {
  product p = {.layer = l, .x = x, .y = y, .rows = rows};
  const long work = (long)rows * l->in * l->out;
  if (l->kind == FLOAT32 || l->kind == FLOAT16) {
    in_parallel(rows_of_floats, &p, l->out, work);
    return;
  }
  const long groups = l->kind == INT4 ? l->in / GROUP : 0;
  p.scale = (float *)room;
  p.sum = groups ? p.scale + rows : NULL;
  p.q = (int16_t *)(p.scale + rows * (1 + groups));
  in_parallel(round_rows, &p, rows, 16L * rows * l->in);
  in_parallel(tiles, &p, (l->out + OUTPUTS - 1) / OUTPUTS, work);
}

/* ---- norms, positions, activations ---- */

typedef struct {
  const float *weight, *bias; /* bias: NULL for an RMSNorm */
  float epsilon;
} norm;

static float total(const float *x, int n) {
  floats sum = {0};
  int i = 0;
  for (; i + LANES <= n; i += LANES) sum += load(x + i);
  float rest = 0;
  for (; i < n; i++) rest += x[i];
  return total_of(sum) + rest;
}

typedef struct {
  const norm *f;
  const float *x;
  float *y;
  int n;
} norming;

static void norm_rows(void *given, int begin, int end) {
  const norming *m = given;
  const norm *f = m->f;
  const int n = m->n;
  for (int r = begin; r < end; r++) {
    const float *x = m->x + (long)r * n;
    float *y = m->y + (long)r * n;
    const float mean = f->bias ? total(x, n) / (float)n : 0;
    for (int i = 0; i < n; i++) y[i] = x[i] - mean;
    float square;
    dots(y, 0, y, n, n, 1, 1, &square, 1);
    const float factor = 1 / sqrtf(square / (float)n + f->epsilon);
    for (int i = 0; i < n; i++) y[i] = y[i] * factor * f->weight[i] + (f->bias ? f->bias[i] : 0);
  }
}

/* y = (x - mean) / sqrt(var + epsilon) weight + bias, or x / sqrt(mean(x^2) + epsilon) weight. */
API void apply_norm(const norm *f, const float *x, float *y, int rows, int n) {
  norming m = {f, x, y, n};
  in_parallel(norm_rows, &m, rows, 16L * rows * n);
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
  x = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
  const int32_t whole = nearest(x * 1.44269504f);
  const float n = (float)whole;
  const float f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1;
  const uint32_t raised = (uint32_t)(whole + 127) << 23;
  float power;
  memcpy(&power, &raised, 4);
  return p * power;
}

enum { GELU_TANH, GELU, RELU, SILU };

typedef struct {
  int kind, n, is_gated;
  const float *x;
  float *y;
} activation;

static void activate_rows(void *given, int begin, int end) {
  const activation *a = given;
  const int n = a->n, is_gated = a->is_gated;
  for (int r = begin; r < end; r++) {
    const float *v = a->x + (long)r * n * (is_gated ? 2 : 1), *up = v + n;
    float *to = a->y + (long)r * n;
    switch (a->kind) {
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

/* x (rows, n) -> y; gated: x (rows, 2, n), gate and up -> act(gate) up. y may be x where nothing is gated. */
API void apply_activation(int kind, const float *x, float *y, int rows, int n, int is_gated) {
  activation a = {kind, n, is_gated, x, y};
  in_parallel(activate_rows, &a, rows, 8L * rows * n);
}

/* ---- attention of one token a row ---- */

typedef struct {
  int heads, key_value_heads, head_size, window; /* window: 0 for none */
  float scale;
} attention;

/* The tokens of a pass, one a row, and the keys and values of their sequences. */
typedef struct {
  float *keys, *values;       /* of row 0: (key/value heads, positions, head size) */
  long row, head;             /* floats from one row's keys to the next one's, from one head's to the next */
  const int *at;              /* (rows,) the position of each */
  int rows, positions;        /* positions: more than the largest */
} tokens;

typedef struct {
  const attention *a;
  const tokens *t;
  const float *query;         /* (rows, all heads, head size), of which the first are queries */
  long stride;
  float *mixed;               /* (rows, heads, head size) */
  float *room;                /* (threads' items, positions) */
  int row;                    /* which row is the first */
} mixing;

#define ATTENDED 16 /* rows whose scores there is room for */

/* y, of as many vectors as `wide` says, = the sum over t of s[t] v[t]; v has n floats a row. */
INLINE void weighted_vectors(const float *s, const float *v, int count, int n, float *y, const int wide) {
  floats sum[4] = {0};
  for (int t = 0; t < count; t++)
    UNROLL for (int c = 0; c < wide; c++) sum[c] += all(s[t]) * load(v + (long)t * n + c * LANES);
  UNROLL for (int c = 0; c < wide; c++) store(y + c * LANES, sum[c]);
}

/* y (n,) = the sum over t of s[t] v[t], where v is (count, n). */
static void weighted_sum(const float *s, const float *v, int count, int n, float *y) {
  int i = 0;
  for (; i + 4 * LANES <= n; i += 4 * LANES) weighted_vectors(s, v + i, count, n, y + i, 4);
  for (; i + 2 * LANES <= n; i += 2 * LANES) weighted_vectors(s, v + i, count, n, y + i, 2);
  for (; i + LANES <= n; i += LANES) weighted_vectors(s, v + i, count, n, y + i, 1);
  for (; i < n; i++) {
    float sum = 0;
    for (int t = 0; t < count; t++) sum += s[t] * v[(long)t * n + i];
    y[i] = sum;
  }
}

static void softmax(float *x, int n, float scale) {
  float largest = -INFINITY;
  for (int i = 0; i < n; i++) largest = x[i] > largest ? x[i] : largest;
  for (int i = 0; i < n; i++) x[i] = exponential((x[i] - largest) * scale);
  const float sum = total(x, n);
  for (int i = 0; i < n; i++) x[i] /= sum;
}

/* An item: the heads of a row that share keys and values. */
static void mix_heads(void *given, int begin, int end) {
  const mixing *m = given;
  const attention *a = m->a;
  const tokens *t = m->t;
  const int size = a->head_size, shared = a->heads / a->key_value_heads;
  for (int item = begin; item < end; item++) {
    const int r = m->row + item / a->key_value_heads, h = item % a->key_value_heads, last = t->at[r];
    const int first = a->window && last >= a->window ? last - a->window + 1 : 0, seen = last - first + 1;
    const long offset = r * t->row + h * t->head + (long)first * size;
    float *scores = m->room + (long)item * shared * t->positions;
    all_dots(t->keys + offset, m->query + r * m->stride + (long)h * shared * size, size, size, seen, shared, scores,
             t->positions);
    for (int n = 0; n < shared; n++) {
      softmax(scores + (long)n * t->positions, seen, a->scale);
      weighted_sum(scores + (long)n * t->positions, t->values + offset, seen, size,
                   m->mixed + ((long)r * a->heads + h * shared + n) * size);
    }
  }
}

/* softmax(q K^T scale) V of each row, up to its position. room: (attended rows, heads, positions). */
API void attend(const attention *a, const tokens *t, const float *query, long stride, float *mixed, float *room) {
  for (int row = 0; row < t->rows; row += ATTENDED) {
    const int some = t->rows - row < ATTENDED ? t->rows - row : ATTENDED;
    mixing m = {a, t, query, stride, mixed, room, row};
    in_parallel(mix_heads, &m, some * a->key_value_heads, 4L * some * a->heads * t->positions * a->head_size);
  }
}

/* ---- blocks ---- */

typedef struct {
  norm norm_1, norm_2, after_1, after_2, query, key; /* a weight of NULL: there is none */
  linear query_key_value, projection, expand, contract;
  attention heads;
  int width, inner, activation, is_gated, is_parallel;
  int turned, rotation; /* how many components of a head positions turn, and by which cosines and sines */
} block;

API long block_room(const block *b, int rows, int positions) {
  const attention *a = &b->heads;
  const long all = a->heads + 2L * a->key_value_heads;
  long widest = b->inner;
  if (b->width > widest) widest = b->width;
  if ((long)a->heads * a->head_size > widest) widest = (long)a->heads * a->head_size;
  return sizeof(float) * rows * (3L * b->width + all * a->head_size + (long)a->heads * a->head_size +
                                 (b->is_gated ? 3L : 2L) * b->inner) +
         sizeof(float) * (rows < ATTENDED ? rows : ATTENDED) * a->heads * positions +
         rows * (widest * 2 + 8 + (widest / GROUP + 1) * 4) + 256;
}

static void add(float *x, const float *y, long n) {
  for (long i = 0; i < n; i++) x[i] += y[i];
}

typedef struct {
  const block *b;
  const tokens *t;
  const float *cosines, *sines; /* (positions, turned / 2) */
  float *heads;                 /* (rows, queries, keys and values, head size) */
} placing;

/* Turn queries and keys by their positions, and write keys and values to where they are kept. */
static void place_rows(void *given, int begin, int end) {
  const placing *p = given;
  const block *b = p->b;
  const tokens *t = p->t;
  const int size = b->heads.head_size, queries = b->heads.heads, shared = b->heads.key_value_heads, half = b->turned / 2;
  for (int r = begin; r < end; r++) {
    float *h = p->heads + (long)r * (queries + 2 * shared) * size;
    if (b->query.weight) {
      apply_norm(&b->query, h, h, queries, size);
      apply_norm(&b->key, h + queries * size, h + queries * size, shared, size);
    }
    for (int n = 0; half && n < queries + shared; n++)
      turn(h + n * size, p->cosines + (long)t->at[r] * half, p->sines + (long)t->at[r] * half, b->turned);
    for (int n = 0; n < shared; n++) {
      const long to = r * t->row + n * t->head + (long)t->at[r] * size;
      memcpy(t->keys + to, h + (queries + n) * size, sizeof(float) * size);
      memcpy(t->values + to, h + (queries + shared + n) * size, sizeof(float) * size);
    }
  }
}

/* What a block adds to the states x (rows, width), in place. */
static void apply_block(const block *b, float *x, const tokens *t, const float *cosines, const float *sines, float *room) {
  const attention *a = &b->heads;
  const int rows = t->rows, size = a->head_size, queries = a->heads, all = queries + 2 * a->key_value_heads;
  const long width = b->width;
  float *normed = room, *added = normed + rows * width, *other = added + rows * width, *heads = other + rows * width;
  float *mixed = heads + (long)rows * all * size, *inner = mixed + (long)rows * queries * size;
  float *active = inner + (long)rows * b->inner * (b->is_gated ? 2 : 1), *scores = active + (long)rows * b->inner;
  char *rounded = (char *)(scores + (rows < ATTENDED ? rows : ATTENDED) * (long)queries * t->positions);

  apply_norm(&b->norm_1, x, normed, rows, b->width);
  apply_linear(&b->query_key_value, normed, heads, rows, rounded);
  placing p = {b, t, cosines, sines, heads};
  in_parallel(place_rows, &p, rows, 16L * rows * all * size);
  attend(a, t, heads, (long)all * size, mixed, scores);
  apply_linear(&b->projection, mixed, added, rows, rounded);
  if (b->after_1.weight) apply_norm(&b->after_1, added, added, rows, b->width);
  if (!b->is_parallel) add(x, added, rows * width);

  apply_norm(&b->norm_2, x, normed, rows, b->width);
  apply_linear(&b->expand, normed, inner, rows, rounded);
  apply_activation(b->activation, inner, active, rows, b->inner, b->is_gated);
  apply_linear(&b->contract, active, other, rows, rounded);
  if (b->after_2.weight) apply_norm(&b->after_2, other, other, rows, b->width);
  if (b->is_parallel) add(x, added, rows * width);
  add(x, other, rows * width);
}

/* Consecutive blocks. t: with the keys and values of the first; layer: floats from a block's keys to the next
   one's, and from its values. turns: of each rotation cosines and sines (positions, turned / 2). */
API void apply_blocks(const block *b, int count, float *x, const tokens *t, long layer, const float *const *turns,
                      float *room) {
  tokens here = *t;
  for (int n = 0; n < count; n++, here.keys += layer, here.values += layer)
    apply_block(b + n, x, &here, turns[2 * b[n].rotation], turns[2 * b[n].rotation + 1], room);
}

/* ---- the next token ---- */

INLINE floats larger(floats a, floats b) {
  const ints is_a = a > b;
  return (floats)(((ints)a & is_a) | ((ints)b & ~is_a));
}

static float largest_of(const float *x, int n) {
  floats most = all(-INFINITY);
  int i = 0;
  for (; i + LANES <= n; i += LANES) most = larger(load(x + i), most);
  float largest = -INFINITY;
  for (int l = 0; l < LANES; l++) largest = most[l] > largest ? most[l] : largest;
  for (; i < n; i++) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/* log sum exp(x); no number where an x is NaN or infinite. room: n floats. */
API float log_sum(const float *x, int n, float *room) {
  const float largest = largest_of(x, n);
  for (int i = 0; i < n; i++) room[i] = exponential(x[i] - largest);
  return largest + logf(total(room, n));
}

/* The least of the fewest largest of n weights >= 0 that sum up to `goal`, or, with is_count, are as many; `equals`
   of those that equal it are among them. The order of the weights changes: around a pivot, larger ones come first. */
static float least_kept(float *w, int n, double goal, int is_count, int *equals) {
  double above = 0; /* of what is larger than all that are left */
  for (;;) {
    const float first = w[0], middle = w[n / 2], last = w[n - 1];
    const float pivot = (first < middle) == (middle < last) ? middle : (middle < first) == (first < last) ? first : last;
    int larger = 0, smaller = n;
    double sum = 0;
    for (int i = 0; i < smaller;) {
      const float here = w[i];
      if (here > pivot) {
        sum += is_count ? 1 : here;
        w[i++] = w[larger];
        w[larger++] = here;
      } else if (here < pivot) {
        w[i] = w[--smaller];
        w[smaller] = here;
      } else i++;
    }
    if (larger && above + sum >= goal) {
      n = larger;
      continue;
    }
    above += sum;
    *equals = 0;
    while (*equals < smaller - larger && above < goal) above += is_count ? 1 : pivot, ++*equals;
    if (above >= goal || smaller == n) return pivot;
    w += smaller, n -= smaller;
  }
}

/* Of the weights: the most that is dropped, and how many of those just above it count. */
typedef struct {
  float least;
  int equals;
} bound;

INLINE int is_kept(float weight, bound *b) { return weight > b->least || (weight == b->least && b->equals-- > 0); }

typedef struct {
  double top_p;
  float temperature, min_p, penalty, relief; /* relief: 1 / penalty, for logits above 0 */
  int top_k, end_count;
  const int *ends;            /* token ids after which nothing is drawn */
  const double *uniforms;     /* from 0 to 1, for each token one; NULL where nothing is random */
  uint8_t *seen;              /* (vocabulary,) whether the penalty applies; NULL: it applies to none */
} sampling;

/* The token id drawn by a number from 0 to 1: the first after whose weight the sum is above this share of it. Weights
   are exp((x - largest) / temperature); of them the top_k largest stay, of these the fewest with the share top_p, of
   these those that are at least min_p. room: 2 n floats. */
API int draw_token(const sampling *s, const float *x, int n, double uniform, float *room) {
  float *weights = room, *values = room + n;
  memcpy(weights, x, sizeof(float) * n);
  for (int i = 0; s->seen && i < n; i++)
    if (s->seen[i]) weights[i] *= weights[i] > 0 ? s->relief : s->penalty;
  const float largest = largest_of(weights, n);
  if (s->temperature == 0) {
    int id = 0;
    while (id < n - 1 && weights[id] != largest) id++;
    return id;
  }
  for (int i = 0; i < n; i++) {
    const float below = (weights[i] - largest) / s->temperature;
    weights[i] = below < -87.0f ? 0 : exponential(below);
  }
  bound among_k = {-1, 0}, nucleus = {-1, 0};
  if (s->top_k && s->top_k < n) {
    memcpy(values, weights, sizeof(float) * n);
    among_k.least = least_kept(values, n, s->top_k, 1, &among_k.equals);
    bound left = among_k;
    for (int i = 0; i < n; i++)
      if (!is_kept(weights[i], &left)) weights[i] = 0;
  }
  if (s->top_p < 1) {
    const float sum = total(weights, n), little = (float)(1 - s->top_p) / 2 * sum / (float)n;
    int count = 0; /* the smaller ones have less than 1 - top_p of the sum together */
    for (int i = 0; i < n; i++) {
      values[count] = weights[i];
      count += weights[i] > little;
    }
    nucleus.least = least_kept(values, count, s->top_p * sum, 0, &nucleus.equals);
  }
  double sum = 0;
  for (int i = 0; i < n; i++) {
    if (!is_kept(weights[i], &nucleus) || weights[i] < s->min_p) weights[i] = 0;
    sum += weights[i];
  }
  int last = 0;
  double before = 0;
  for (int i = 0; i < n; i++) {
    if (weights[i] == 0) continue;
    before += weights[i], last = i;
    if (before > uniform * sum) break;
  }
  return last;
}

/* ---- several tokens ---- */

typedef struct {
  const block *blocks;
  int count, is_half;             /* is_half: whether the embedding is of float16 */
  const void *embedding;          /* (vocabulary, width) */
  const float *positions;         /* (positions, width), or NULL */
  const float *const *turns;      /* see apply_blocks */
  float scale;                    /* of the embedding */
  norm last;
  linear output;
} decoder;

typedef struct {
  const sampling *s;          /* (rows,) */
  int *ids;                   /* (rows,) */
  double *logprobs;           /* (rows,) */
  float *logits, *room;       /* (rows, vocabulary), (rows, 2, vocabulary) */
  int vocabulary, step;
  atomic_int ended;           /* rows that go on no further: 1 after this token, 2 before it */
} drawing;

static void embed(const decoder *d, int id, int at, float *x) {
  const long width = d->blocks->width, row = id * width;
  for (long i = 0; i < width; i++)
    x[i] = (d->is_half ? of_half(((const uint16_t *)d->embedding)[row + i]) : ((const float *)d->embedding)[row + i]) * d->scale;
  if (d->positions) add(x, d->positions + at * width, width);
}

static void draw_rows(void *given, int begin, int end) {
  drawing *d = given;
  const int n = d->vocabulary;
  for (int r = begin; r < end; r++) {
    const sampling *s = d->s + r;
    const float *logits = d->logits + (long)r * n;
    float *room = d->room + 2L * r * n;
    const float sum = log_sum(logits, n, room);
    if (!isfinite(sum)) {
      atomic_store(&d->ended, 2);
      continue;
    }
    const int id = d->ids[r] = draw_token(s, logits, n, s->uniforms ? s->uniforms[d->step] : 0, room);
    d->logprobs[r] = (double)logits[id] - (double)sum;
    for (int e = 0; e < s->end_count; e++) {
      int going_on = 0; /* 2 stays 2 */
      if (s->ends[e] == id) atomic_compare_exchange_strong(&d->ended, &going_on, 1);
    }
  }
}

static double seconds_now(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Bytes of room for write_tokens. */
API long write_room(const decoder *d, int rows, int positions) {
  const long states = 2L * rows * d->blocks->width, most = block_room(d->blocks, rows, positions);
  const long rounded = linear_room(&d->output, rows);
  return sizeof(float) * (states + 3L * rows * d->output.out) + (most > rounded ? most : rounded) + 64;
}

/* Write on after the token ids[row] of each row of t, which is at its position and not read yet: at most `most`
   tokens each, fewer once `seconds` have passed, or when a row draws one of its ends. ids: (most + 1, rows), of which
   the first row is given. logprobs: (most, rows). Returns how many; logits that are not finite end it before them. */
API int write_tokens(const decoder *d, const tokens *t, long layer, const sampling *s, int most, double seconds,
                     int *ids, double *logprobs, float *room) {
  const int rows = t->rows, width = d->blocks->width;
  float *x = room, *normed = x + (long)rows * width, *logits = normed + (long)rows * width;
  float *drawn = logits + (long)rows * d->output.out, *rest = drawn + 2L * rows * d->output.out;
  int *at = malloc(sizeof(int) * rows);
  if (!at) return 0;
  memcpy(at, t->at, sizeof(int) * rows);
  tokens here = *t;
  here.at = at;
  drawing w = {.s = s, .logits = logits, .room = drawn, .vocabulary = d->output.out};
  const double until = seconds_now() + seconds;
  while (w.step < most) {
    for (int r = 0; r < rows; r++) embed(d, ids[r], at[r], x + (long)r * width);
    apply_blocks(d->blocks, d->count, x, &here, layer, d->turns, rest);
    apply_norm(&d->last, x, normed, rows, width);
    apply_linear(&d->output, normed, logits, rows, (char *)rest);
    ids += rows, w.ids = ids, w.logprobs = logprobs;
    in_parallel(draw_rows, &w, rows, 16L * rows * d->output.out);
    if (w.ended == 2) break;
    for (int r = 0; r < rows; r++)
      if (s[r].seen) s[r].seen[ids[r]] = 1;
    w.step++, logprobs += rows;
    if (w.ended || seconds_now() > until) break;
    for (int r = 0; r < rows; r++) at[r]++;
  }
  free(at);
  return w.step;
}
