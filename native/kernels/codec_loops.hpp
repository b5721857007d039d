// The codecs' loops over items, written once as those of loops.hpp are, and included right after them.

namespace {

constexpr size_t num_sums = 16;

inline float item(const void* items, size_t i) { return read<float>(items, i * sizeof(float)); }
inline uint32_t magnitude(const void* items, size_t i) {
    return read<uint32_t>(items, i * sizeof(float)) & 0x7fffffff;
}

// As numbers, the bits of magnitudes are ordered like the magnitudes, and NaN comes after all of them.
float largest(const void* items, size_t num_items) {
    uint32_t found = 0;
    for (size_t i = 0; i < num_items; ++i) found = std::max(found, magnitude(items, i));
    return std::bit_cast<float>(found);
}

// Item i belongs to sum i mod 16, and these are added up in order: the same result on every instruction set.
template <typename Function>
double sum_of(Function function, const void* items, size_t num_items) {
    double sums[num_sums] = {};
    size_t i = 0;
    for (; i + num_sums <= num_items; i += num_sums)
        for (size_t j = 0; j < num_sums; ++j) sums[j] += function(static_cast<double>(item(items, i + j)));
    for (size_t j = 0; i + j < num_items; ++j) sums[j] += function(static_cast<double>(item(items, i + j)));
    double total = 0.0;
    for (const double sum : sums) total += sum;
    return total;
}

double sum_of_magnitudes(const void* items, size_t num_items) {
    return sum_of([](double x) { return std::fabs(x); }, items, num_items);
}

double sum_of_squares(const void* items, size_t num_items) {
    return sum_of([](double x) { return x * x; }, items, num_items);
}

// Bit i of the words: item i is below zero.
void pack_signs(void* words, const void* items, size_t num_items) {
    size_t i = 0;
    for (; i + 32 <= num_items; i += 32) {
        uint32_t word = 0;
        for (uint32_t j = 0; j < 32; ++j) word |= static_cast<uint32_t>(item(items, i + j) < 0.0F) << j;
        write(words, i / 8, word);
    }
    uint32_t word = 0;
    for (uint32_t j = 0; i + j < num_items; ++j)
        word |= static_cast<uint32_t>(item(items, i + j) < 0.0F) << j;
    if (i < num_items) write(words, i / 8, word);
}

void unpack_signs(void* items, const void* words, float scale, size_t num_items) {
    const uint32_t bits = std::bit_cast<uint32_t>(scale);
    const auto put_one = [=](size_t i, uint32_t word, uint32_t j) {
        write(items, (i + j) * sizeof(float), bits ^ (word >> j & 1) << 31);
    };
    size_t i = 0;
    for (; i + 32 <= num_items; i += 32) {
        const auto word = read<uint32_t>(words, i / 8);
        for (uint32_t j = 0; j < 32; ++j) put_one(i, word, j);
    }
    if (i == num_items) return;
    const auto word = read<uint32_t>(words, i / 8);
    for (uint32_t j = 0; i + j < num_items; ++j) put_one(i, word, j);
}

// Comparisons are of bits, not of floats, because those of magnitudes are ordered alike and compilers
// vectorise them.
constexpr uint32_t sign_bit = 0x80000000;

// x + 1.5 * 2^23 has x, rounded to nearest even, in its lowest bits.
constexpr float rounder = 12582912.0F;

void quantize(void* output, const void* items, float factor, size_t num_items) {
    auto* codes = static_cast<int8_t*>(output);
#pragma GCC ivdep
    for (size_t i = 0; i < num_items; ++i) {
        const auto bits = std::bit_cast<uint32_t>(item(items, i) * factor);
        const uint32_t within =
            std::min(bits & ~sign_bit, std::bit_cast<uint32_t>(127.0F)) | (bits & sign_bit);
        codes[i] = static_cast<int8_t>(std::bit_cast<uint32_t>(std::bit_cast<float>(within) + rounder));
    }
}

void dequantize(void* items, const void* input, float unit, size_t num_items) {
    const auto* codes = static_cast<const int8_t*>(input);
#pragma GCC ivdep
    for (size_t i = 0; i < num_items; ++i)
        write(items, i * sizeof(float), static_cast<float>(codes[i]) * unit);
}

inline int8_t with_sign_of(float x, int32_t level) {
    const auto sign = static_cast<int32_t>(std::bit_cast<uint32_t>(x)) >> 31;  // 0 or -1
    return static_cast<int8_t>((level ^ sign) - sign);
}

// Up or down to one of the levels 0, 1, ... num_levels, by chance, so that the mean is right.
void dither_linear(int8_t* codes, const void* items, float factor, int32_t num_levels, uint64_t key,
                   uint32_t first, size_t num_items) {
#pragma GCC ivdep
    for (size_t i = 0; i < num_items; ++i) {
        const float x = item(items, i);
        const uint32_t random = chance(key, first + static_cast<uint32_t>(i));
        const float y = std::fabs(x) * factor + static_cast<float>(random >> 8) * 0x1p-24F;
        const auto level = static_cast<int32_t>(y);
        codes[i] = with_sign_of(x, level < num_levels ? level : num_levels);
    }
}

// The same to 0, or to level l > 0, which is 2^(l - num_levels). Between two powers of two the fraction's
// bits are the chance to go up.
void dither_natural(int8_t* codes, const void* items, float factor, int32_t num_levels, uint64_t key,
                    uint32_t first, size_t num_items) {
    const float smallest = std::bit_cast<float>(static_cast<uint32_t>(128 - num_levels) << 23);
#pragma GCC ivdep
    for (size_t i = 0; i < num_items; ++i) {
        const float x = item(items, i);
        const uint32_t random = chance(key, first + static_cast<uint32_t>(i)) >> 9;
        const float y = std::fabs(x) * factor;
        const uint32_t bits = std::bit_cast<uint32_t>(y);
        const int32_t power =
            static_cast<int32_t>(bits >> 23) + (random < (bits & 0x7fffff)) - 127 + num_levels;
        const auto bar = std::bit_cast<uint32_t>(static_cast<float>(random) * 0x1p-23F * smallest);
        const int32_t level =
            bits < std::bit_cast<uint32_t>(smallest) ? static_cast<int32_t>(bar < bits) : power;
        codes[i] = with_sign_of(x, level < num_levels ? level : num_levels);
    }
}

}  // namespace

extern const CodecLoops codec_loops{largest,  sum_of_magnitudes, sum_of_squares, pack_signs,    unpack_signs,
                                    quantize, dequantize,        dither_linear,  dither_natural};
