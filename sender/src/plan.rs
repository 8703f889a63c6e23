//! Extents to units of work, in image order.

use std::ops::Range;

use proto::extents::BlockMap;
use proto::geometry::{BLOCK, ChunkSize, GRANULE};

use crate::Source;

/// One step of the plan.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// What follows is about this image.
    Begin { image: u32 },
    /// Read this chunk.
    Data {
        image: u32,
        chunk: u64,
        /// Blocks inside extents; the rest is a hole.
        extents: BlockMap,
        /// Whole chunks of the same extent that follow.
        ahead: u32,
    },
    /// These chunks are a hole.
    Hole { image: u32, chunk: u64, count: u64 },
    /// The image has no more units.
    End { image: u32 },
}

/// Walks one image's extents, calling `emit` for each step until it says stop (`false`). With
/// `no_holes` all of it is one extent, whatever the file system says.
///
/// # Errors
/// What the file system says to SEEK_DATA or SEEK_HOLE.
pub(crate) fn walk(
    index: u32,
    source: &Source,
    chunk: ChunkSize,
    no_holes: bool,
    mut emit: impl FnMut(Work) -> bool,
) -> Result<(), blockio::Error> {
    if !emit(Work::Begin { image: index }) {
        return Ok(());
    }
    let (size, bytes) = (source.entry().size, u64::from(chunk.bytes()));
    let chunks = chunk.count(size);
    let mut extent = if no_holes { Some(0..size) } else { source.image.next_data(0)? };
    let mut at = 0;
    while at < chunks {
        let Some(next) = extent.clone() else {
            if !emit(Work::Hole { image: index, chunk: at, count: chunks - at }) {
                return Ok(());
            }
            break;
        };
        let first = next.start / bytes;
        if first > at {
            if !emit(Work::Hole { image: index, chunk: at, count: first - at }) {
                return Ok(());
            }
            at = first;
        }
        let here = at * bytes..((at + 1) * bytes).min(size);
        let mut extents = BlockMap::EMPTY;
        let mut ahead = 0;
        while let Some(e) = extent.clone().filter(|e| e.start < here.end) {
            extents.set(blocks(&e, &here));
            if e.end > here.end {
                ahead = u32::try_from((e.end - here.end) / bytes).unwrap_or(u32::MAX);
                extent = Some(here.end..e.end);
                break;
            }
            extent = if e.end >= size { None } else { source.image.next_data(e.end)? };
        }
        if !emit(Work::Data { image: index, chunk: at, extents, ahead }) {
            return Ok(());
        }
        at += 1;
    }
    emit(Work::End { image: index });
    Ok(())
}

/// How many granules of an image lie in holes as a whole.
///
/// # Errors
/// What the file system says to SEEK_DATA or SEEK_HOLE.
pub(crate) fn zero_granules(source: &Source) -> Result<u64, blockio::Error> {
    let (size, granule) = (source.entry().size, u64::from(GRANULE));
    let (mut at, mut found) = (0, 0);
    loop {
        let next = source.image.next_data(at)?.unwrap_or(size..size);
        let last = if next.start == size { size.div_ceil(granule) } else { next.start / granule };
        found += last.saturating_sub(at.div_ceil(granule));
        if next.end >= size {
            return Ok(found);
        }
        at = next.end;
    }
}

/// The blocks of a chunk that an extent touches.
fn blocks(extent: &Range<u64>, chunk: &Range<u64>) -> Range<usize> {
    let block = u64::from(BLOCK);
    let start = extent.start.max(chunk.start) - chunk.start;
    let end = extent.end.min(chunk.end) - chunk.start;
    // Both lie within one chunk, so they fit.
    (start / block) as usize..end.div_ceil(block) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn with_source<T>(size: u64, data: &[(u64, usize)], look: impl FnOnce(Source) -> T) -> T {
        let dir = std::env::temp_dir().join(format!("vmferry-plan-{}-{size}", std::process::id()));
        let file = File::create(&dir).unwrap();
        file.set_len(size).unwrap();
        for (at, len) in data {
            file.write_all_at(&vec![1; *len], *at).unwrap();
        }
        drop(file);
        let found = look(Source::open(&dir, true, false).unwrap());
        std::fs::remove_file(&dir).unwrap();
        found
    }

    fn plan(size: u64, data: &[(u64, usize)]) -> Vec<Work> {
        steps(size, data, false)
    }

    fn steps(size: u64, data: &[(u64, usize)], no_holes: bool) -> Vec<Work> {
        with_source(size, data, |source| {
            let mut steps = Vec::new();
            walk(0, &source, ChunkSize::DEFAULT, no_holes, |w| {
                steps.push(w);
                true
            })
            .unwrap();
            steps
        })
    }

    #[test]
    fn only_whole_granules_of_holes_count() {
        let mib = 1u64 << 20;
        let count = |size, data: &[_]| with_source(size, data, |source| zero_granules(&source).unwrap());
        assert_eq!(count(10 * mib, &[]), 10);
        assert_eq!(count(9 * mib + 1, &[]), 10);
        assert_eq!(count(9 * mib, &[(0, 9 << 20)]), 0);
        // Data at both ends of granule 4, in granule 6, and at the very end.
        let data = [(4 * mib, 4096), (5 * mib - 4096, 4096), (6 * mib + 8192, 1), (9 * mib - 1, 1)];
        assert_eq!(count(9 * mib, &data), 4 + 1 + 1);
        assert_eq!(count(10 * mib + 3, &data[..3]), 4 + 1 + 4);
    }

    #[test]
    fn covers_every_chunk_once_and_knows_what_lies_ahead() {
        let mib = 1u64 << 20;
        let steps = plan(100 * mib + 7, &[(3 * mib + 8192, 4096), (10 * mib, 3 << 20), (100 * mib + 6, 1)]);
        let mut next = 0;
        for step in &steps {
            match step {
                Work::Data { chunk, .. } => {
                    assert_eq!(*chunk, next);
                    next += 1;
                }
                Work::Hole { chunk, count, .. } => {
                    assert_eq!(*chunk, next);
                    next += count;
                }
                Work::Begin { .. } => assert_eq!(next, 0),
                Work::End { .. } => assert_eq!(next, 101),
            }
        }
        let data = |s: &Work| match s {
            Work::Data { chunk, ahead, .. } => Some((*chunk, *ahead)),
            _ => None,
        };
        assert_eq!(
            steps.iter().filter_map(data).collect::<Vec<_>>(),
            [(3, 0), (10, 2), (11, 1), (12, 0), (100, 0)]
        );
    }

    #[test]
    fn nobody_is_asked_for_holes() {
        let steps = steps(3 << 20, &[], true);
        let whole =
            |s: &Work| matches!(s, Work::Data { extents, .. } if extents.data_bytes(1 << 20) == 1 << 20);
        assert_eq!(steps.iter().filter(|step| whole(step)).count(), 3);
        assert!(matches!(steps[4..], [Work::End { .. }]));
    }

    #[test]
    fn empty_and_all_hole_images() {
        assert!(matches!(plan(0, &[])[..], [Work::Begin { .. }, Work::End { .. }]));
        assert!(matches!(
            plan(1 << 40, &[])[..],
            [Work::Begin { .. }, Work::Hole { count: 1_048_576, .. }, Work::End { .. }]
        ));
    }
}
