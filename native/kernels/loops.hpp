// Every element-wise loop, written once; see the note in instruction_set.hpp.
//
// There is no include guard. The including file has switched on the instructions of one set and opened the
// namespace legato::<set>, in which it has defined what no compiler finds by itself, the conversion of f16:
//   Halves, Floats                                 a register's worth of each,
//   widen_halves(Halves), narrow_floats(Floats)    one as the other.

namespace {

template <typename T>
constexpr bool is_narrow = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
template <typename T>
using AccumulatorOf = std::conditional_t<is_narrow<T>, float, T>;

// memcpy, because items may lie at any address; it compiles to one unaligned move.
template <typename T>
T read(const void* data, size_t offset) {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(data) + offset, sizeof value);
    return value;
}
template <typename T>
void write(void* data, size_t offset, T value) {
    std::memcpy(static_cast<std::byte*>(data) + offset, &value, sizeof value);
}

template <typename Item>
AccumulatorOf<Item> get(const void* items, size_t i) {
    const Item item = read<Item>(items, i * sizeof(Item));
    if constexpr (is_narrow<Item>)
        return widen(item);
    else
        return item;
}
template <typename Item>
void put(void* items, size_t i, AccumulatorOf<Item> value) {
    if constexpr (is_narrow<Item>)
        write(items, i * sizeof(Item), narrow<Item>(value));
    else
        write(items, i * sizeof(Item), value);
}

// The same for a register's worth of f16, or of the floats that meet it.
constexpr size_t num_lanes = sizeof(Floats) / sizeof(float);

template <typename Item>
Floats get_floats(const void* items, size_t i) {
    if constexpr (std::is_same_v<Item, Half>)
        return widen_halves(read<Halves>(items, i * sizeof(Item)));
    else
        return read<Floats>(items, i * sizeof(Item));
}
template <typename Item>
void put_floats(void* items, size_t i, Floats values) {
    if constexpr (std::is_same_v<Item, Half>)
        write(items, i * sizeof(Item), narrow_floats(values));
    else
        write(items, i * sizeof(Item), values);
}

template <typename>
using Source = const void*;

// output[i] = function(inputs[i]...): the loop that all kernels are. An input may be the output itself, which
// is what ivdep says: no item depends on another, so nothing need be checked before several are done at once.
template <typename Out, typename... In, typename Function>
void transform(Function function, size_t num_items, void* output, Source<In>... inputs) {
    size_t i = 0;
    if constexpr (std::is_same_v<Out, Half> || (std::is_same_v<In, Half> || ...))
        for (; i + num_lanes <= num_items; i += num_lanes)
            put_floats<Out>(output, i, function(get_floats<In>(inputs, i)...));
#pragma GCC ivdep
    for (size_t j = i; j < num_items; ++j) put<Out>(output, j, function(get<In>(inputs, j)...));
}

// ---- functions of numbers and of registers full of them ----

// Signed overflow is undefined, unsigned overflow wraps.
template <typename T>
auto wrapping(T value) {
    if constexpr (std::is_integral_v<T>)
        return static_cast<std::make_unsigned_t<T>>(value);
    else
        return value;
}

struct Identity {
    template <typename T>
    T operator()(T a) const {
        return a;
    }
};
struct Add {
    template <typename T>
    T operator()(T a, T b) const {
        return static_cast<T>(wrapping(a) + wrapping(b));
    }
};
struct Product {
    template <typename T>
    T operator()(T a, T b) const {
        return static_cast<T>(wrapping(a) * wrapping(b));
    }
};
// Where a is NaN no comparison holds and it stays; where b is NaN it differs from itself and is taken.
struct Min {
    template <typename T>
    T operator()(T a, T b) const {
        return ((b < a) | (b != b)) ? b : a;
    }
};
struct Max {
    template <typename T>
    T operator()(T a, T b) const {
        return ((b > a) | (b != b)) ? b : a;
    }
};
template <typename Divisor>
struct Divide {
    Divisor divisor;
    template <typename T>
    T operator()(T a) const {
        return static_cast<T>(a / divisor);
    }
};
template <typename Factor>
struct Multiply {
    Factor factor;
    template <typename T>
    T operator()(T a) const {
        if constexpr (std::is_integral_v<T>)
            return saturated<T>(static_cast<double>(a) * factor);
        else
            return a * factor;
    }

  private:
    // A cast from a double out of range is undefined.
    template <typename T>
    static T saturated(double value) {
        using Limits = std::numeric_limits<T>;
        if (!(value > static_cast<double>(Limits::min()))) return Limits::min();
        return value < static_cast<double>(Limits::max()) ? static_cast<T>(value) : Limits::max();
    }
};

// The n for which factor is 1 / n, or 0. Up to 2^24 n is exact as a float.
int64_t reciprocal(double factor) {
    const double n = std::nearbyint(1.0 / factor);
    return n >= 1.0 && n <= 0x1p24 && 1.0 / n == factor ? static_cast<int64_t>(n) : 0;
}

template <typename Out, typename In>
void scaled(double factor, size_t num_items, void* output, const void* input) {
    constexpr bool is_integer = std::is_integral_v<In>;
    using Divisor = std::conditional_t<is_integer, int64_t, AccumulatorOf<In>>;
    using Factor = std::conditional_t<is_integer, double, AccumulatorOf<In>>;
    if (factor == 1.0)
        transform<Out, In>(Identity{}, num_items, output, input);
    else if (const int64_t n = reciprocal(factor))
        transform<Out, In>(Divide<Divisor>{static_cast<Divisor>(n)}, num_items, output, input);
    else
        transform<Out, In>(Multiply<Factor>{static_cast<Factor>(factor)}, num_items, output, input);
}

// ---- the kernels ----

template <typename Visitor>
void with_item(DType dtype, Visitor visit) {
    switch (dtype) {
        case DType::f32:
            return visit(float{});
        case DType::f64:
            return visit(double{});
        case DType::f16:
            return visit(Half{});
        case DType::bf16:
            return visit(BFloat16{});
        case DType::i8:
            return visit(int8_t{});
        case DType::u8:
            return visit(uint8_t{});
        case DType::i32:
            return visit(int32_t{});
        case DType::i64:
            return visit(int64_t{});
        case DType::i16:
            return visit(int16_t{});
    }
}

void load(DType dtype, void* accumulator, const void* input, size_t num_items) {
    with_item(dtype, [=](auto item) {
        using Item = decltype(item);
        transform<AccumulatorOf<Item>, Item>(Identity{}, num_items, accumulator, input);
    });
}

void reduce(DType dtype, Reduction reduction, void* accumulator, const void* input, size_t num_items) {
    with_item(dtype, [=](auto item) {
        using Item = decltype(item);
        using Number = AccumulatorOf<Item>;
        switch (reduction) {
            case Reduction::sum:
            case Reduction::average:
                return transform<Number, Number, Item>(Add{}, num_items, accumulator, accumulator, input);
            case Reduction::min:
                return transform<Number, Number, Item>(Min{}, num_items, accumulator, accumulator, input);
            case Reduction::max:
                return transform<Number, Number, Item>(Max{}, num_items, accumulator, accumulator, input);
            case Reduction::product:
                return transform<Number, Number, Item>(Product{}, num_items, accumulator, accumulator, input);
        }
    });
}

void store(DType dtype, void* output, const void* accumulator, double factor, size_t num_items) {
    with_item(dtype, [=](auto item) {
        using Item = decltype(item);
        scaled<Item, AccumulatorOf<Item>>(factor, num_items, output, accumulator);
    });
}

void add(DType dtype, void* total, const void* input, size_t num_items) {
    with_item(dtype, [=](auto item) {
        using Item = decltype(item);
        transform<Item, Item, Item>(Add{}, num_items, total, total, input);
    });
}

void scale(DType dtype, void* data, double factor, size_t num_items) {
    with_item(dtype, [=](auto item) {
        using Item = decltype(item);
        scaled<Item, Item>(factor, num_items, data, data);
    });
}

// As measure.hpp says.
struct Lanes {
    static constexpr size_t num = 16;
    double sums[num] = {};
    double largest[num] = {};

    // Of items that begin at lane 0.
    template <typename Item>
    void add(const void* items, size_t num_items) {
        size_t i = 0;
        for (; i + num <= num_items; i += num)
            for (size_t lane = 0; lane < num; ++lane) add_one(lane, get<Item>(items, i + lane));
        for (size_t lane = 0; i + lane < num_items; ++lane) add_one(lane, get<Item>(items, i + lane));
    }
    Measure total() const {
        Measure total;
        for (size_t lane = 0; lane < num; ++lane) total.append({sums[lane], largest[lane]});
        return total;
    }

  private:
    template <typename Number>
    void add_one(size_t lane, Number number) {
        const auto x = static_cast<double>(number);
        sums[lane] += x * x;
        largest[lane] = Max{}(largest[lane], std::fabs(x));
    }
};

Measure measure(DType dtype, const void* items, size_t num_items) {
    Lanes lanes;
    with_item(dtype, [&](auto item) {
        using Item = decltype(item);
        if constexpr (!is_narrow<Item>) return lanes.add<Item>(items, num_items);
        constexpr size_t num_block = 64 * Lanes::num;
        float block[num_block];
        for (size_t i = 0; i < num_items; i += num_block) {
            const size_t num_widened = std::min(num_block, num_items - i);
            const auto* begin = static_cast<const std::byte*>(items) + i * sizeof(Item);
            transform<float, Item>(Identity{}, num_widened, block, begin);
            lanes.add<float>(block, num_widened);
        }
    });
    return lanes.total();
}

}  // namespace

extern const Loops loops{load, reduce, store, add, scale, measure};
