//! What is left of many measurements.

/// The middle one, or the mean of the two in the middle; 0 of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n => (sorted[n / 2] + sorted[(n - 1) / 2]) / 2.0,
    }
}

/// The least and the most.
pub fn spread(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    values.into_iter().fold((f64::INFINITY, 0.0), |(least, most), v| (v.min(least), v.max(most)))
}
