//! The pool: budget, reuse, order of waiting.
#![allow(clippy::unwrap_used)]

mod common;

use blockio::Pool;
use common::block_on;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn budget_and_reuse() {
    let pool = Pool::new(3, 8192).unwrap();
    assert_eq!((pool.slots(), pool.slot_bytes(), pool.free()), (3, 8192, 3));
    let mut buffers: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
    assert_eq!(buffers.len(), 3);
    assert_eq!(pool.free(), 0);
    for (i, buffer) in (1..).zip(&mut buffers) {
        assert_eq!(buffer.len(), 8192);
        assert!(buffer.as_ptr().addr().is_multiple_of(4096));
        buffer.fill(i);
    }
    for (i, buffer) in (1..).zip(&buffers) {
        assert!(buffer.iter().all(|b| *b == i), "buffers overlap");
    }
    drop(buffers.remove(1));
    let again = pool.try_take().unwrap();
    assert!(again.iter().all(|b| *b == 2), "the freed slot comes back");
    assert!(pool.try_take().is_none());
}

#[test]
fn a_buffer_outlives_its_pool_and_thread() {
    let pool = Pool::new(2, 4096).unwrap();
    let mut buffer = pool.try_take().unwrap();
    drop(pool);
    let buffer = std::thread::spawn(move || {
        buffer.fill(7);
        buffer
    })
    .join()
    .unwrap();
    assert!(buffer.iter().all(|b| *b == 7));
}

#[test]
fn sizes_that_can_not_be() {
    for (slots, bytes) in [(0, 4096), (1, 0), (1, 4095), (1, 6144), (1, 2 << 30), (usize::MAX, 4096)] {
        let error = Pool::new(slots, bytes).unwrap_err();
        assert!(error.to_string().starts_with("cannot reserve buffers: "), "{error}");
    }
}

#[test]
fn waiting_is_in_order_and_a_dropped_wait_loses_nothing() {
    block_on(async {
        let pool = Pool::new(1, 4096).unwrap();
        let held = pool.take().await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for i in 0..5 {
            let (pool, order) = (pool.clone(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let buffer = pool.take().await;
                order.lock().unwrap().push(i);
                tokio::task::yield_now().await;
                drop(buffer);
            }));
            tokio::task::yield_now().await;
        }
        tasks[2].abort();
        tokio::task::yield_now().await;
        drop(held);
        for (i, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.is_err(), i == 2);
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 3, 4]);
        assert_eq!(pool.free(), 1);
        let buffer = pool.take().await;
        let wait = tokio::time::timeout(Duration::from_millis(20), pool.take()).await;
        assert!(wait.is_err());
        drop(buffer);
        assert_eq!(pool.free(), 1);
    });
}
