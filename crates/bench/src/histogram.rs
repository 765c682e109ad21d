//! A high dynamic range histogram: latencies over nine orders of magnitude in a few kilobytes. Values of the
//! same power of two share a row of equal steps, so every value is stored to within a thousandth of itself,
//! and recording one is two shifts and an increment.

/// Steps per power of two: 2^10, a thousandth.
const STEP_BITS: u32 = 10;
const STEPS: usize = 1 << STEP_BITS;
/// Powers of two that are distinguished: microseconds up to half an hour and beyond.
const ROWS: usize = 24;

/// A histogram of whole numbers, here microseconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; STEPS * (ROWS + 1)], count: 0, sum: 0, max: 0 }
    }
}

impl Histogram {
    /// Takes one value in. What is beyond the last row counts as the largest value that can be recorded.
    pub fn record(&mut self, value: u64) {
        let index = index(value).min(self.counts.len() - 1);
        self.counts[index] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// Takes another one in.
    pub fn add(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(ours, theirs)| *ours += theirs);
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// How many values there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// The largest value, exactly.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean, exactly; zero of nothing.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The value that this share of all does not exceed: the upper end of its step, never more than the
    /// largest.
    pub fn value_at_quantile(&self, quantile: f64) -> u64 {
        let wanted = ((quantile * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return highest(index).min(self.max);
            }
        }
        self.max
    }
}

/// Where a value is counted: the first row by ones, every further one by steps twice as wide.
fn index(value: u64) -> usize {
    if value < STEPS as u64 {
        return value as usize;
    }
    let row = value.ilog2() - STEP_BITS + 1;
    row as usize * STEPS + ((value >> (row - 1)) as usize - STEPS)
}

/// The largest value that is counted there.
fn highest(index: usize) -> u64 {
    let (row, step) = (index / STEPS, (index % STEPS) as u64);
    if row == 0 {
        return step;
    }
    ((step + STEPS as u64 + 1) << (row - 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_known_to_within_a_thousandth() {
        for value in (0..10_000).chain((0..1_000).map(|n| n * n * 977)) {
            let counted_as = highest(index(value));
            assert!(counted_as >= value, "{value} is counted as {counted_as}");
            assert!(
                (counted_as - value) as f64 <= value as f64 / STEPS as f64,
                "{value} is counted as {counted_as}"
            );
        }
    }

    #[test]
    fn quantiles_split_what_was_recorded() {
        let (mut all, mut half) = (Histogram::default(), Histogram::default());
        (1..=500).for_each(|value| all.record(value));
        (501..=1_000).for_each(|value| half.record(value));
        all.add(&half);
        assert_eq!((all.len(), all.max(), all.mean()), (1_000, 1_000, 500.5));
        assert_eq!(all.value_at_quantile(0.5), 500);
        assert_eq!(all.value_at_quantile(0.99), 990);
        assert_eq!(all.value_at_quantile(1.0), 1_000);
        assert_eq!(Histogram::default().value_at_quantile(0.5), 0);
    }

    #[test]
    fn what_is_beyond_the_end_is_kept() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert_eq!((histogram.len(), histogram.max()), (1, u64::MAX));
        assert!(histogram.value_at_quantile(0.5) > 1 << 32);
    }
}
