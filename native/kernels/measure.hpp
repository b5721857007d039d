// Measures: what norms, clipping and the search for overflows need to know of many numbers.
//
// Items are widened to f64 and belong to one of 16 lanes by their index; the lanes are added up in order. So
// a measure has the same bits on every machine, and depends on nothing but the items and their order.
#pragma once

#include <cstddef>

#include "kernels/dtype.hpp"

namespace legato {

struct Measure {
    double sum_of_squares = 0.0;
    double largest = 0.0;  // magnitude; NaN where an item is

    // Of this and what comes after it.
    void append(const Measure& next) {
        sum_of_squares += next.sum_of_squares;
        largest = next.largest > largest || next.largest != next.largest ? next.largest : largest;
    }
};

Measure measure(DType dtype, const void* items, size_t num_items);

}  // namespace legato
