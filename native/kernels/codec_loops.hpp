// The codecs' loops over items, written once as those of loops.hpp are, and included right after them.

namespace {

constexpr size_t sum_block = 1024;

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

// Of a block whose second half is added to its first, the second half of that to its first, and so on until
// `count` sums are left: sum i.
template <size_t count, typename Function>
double halved(Function function, const void* items, size_t i) {
    if constexpr (count == sum_block)
        return function(static_cast<double>(item(items, i)));
    else
        return halved<2 * count>(function, items, i) + halved<2 * count>(function, items, i + count);
}

template <typename Function>
double block_sum(Function function, const void* items) {
    constexpr size_t num_sums = 64;  // several at a time, each in a register
    double sums[num_sums];
    for (size_t i = 0; i < num_sums; ++i) sums[i] = halved<num_sums>(function, items, i);
    for (size_t half = num_sums / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    return sums[0];
}

// The sums of neighbouring blocks are added, then those of neighbouring pairs, and so on; one without a
// neighbour stays as it is. In the last block zeros follow the items. All of it in this order on every
// instruction set, and on an accelerator, where such additions are made side by side
// (torch/sync/device_codecs.py).
template <typename Function>
double sum_of(Function function, const void* items, size_t num_items) {
    double waiting[64];  // by size; one of 2^k blocks waits where bit k of the number of blocks is set
    size_t num_blocks = 0;
    for (size_t begin = 0; begin < num_items; begin += sum_block, ++num_blocks) {
        const void* block = static_cast<const std::byte*>(items) + begin * sizeof(float);
        float last[sum_block];
        if (num_items - begin < sum_block) {
            std::memset(last, 0, sizeof last);
            std::memcpy(last, block, (num_items - begin) * sizeof(float));
            block = last;
        }
        double sum = block_sum(function, block);
        size_t size = 0;
        for (; num_blocks >> size & 1; ++size) sum = waiting[size] + sum;
        waiting[size] = sum;
    }
    double total = 0.0;
    for (size_t size = 0; num_blocks >> size != 0; ++size)
        if (num_blocks >> size & 1) total = waiting[size] + total;
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
