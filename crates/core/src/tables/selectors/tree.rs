//! Items with a chance in proportion to their weight: a tree of sums, sixteen to a node.
//!
//! The lowest level has a weight for each place of the table, 0 where there is none. Each number above is the sum of sixteen
//! below it, added up anew whenever one of them changes: errors of rounding do not grow. Readers need no lock: they see
//! some sum of the last moments, and end at a weight that is, or just was, there.

use crate::sys::sync::{AtomicU64, Ordering};

/// Children of a node.
const WIDTH: usize = 16;
/// Levels of a tree with as many items as there can be.
const MAX_LEVELS: usize = 9;

/// How many numbers a tree for so many items has.
pub fn nodes(items: usize) -> usize {
    let (mut total, mut level) = (0, items);
    loop {
        level = level.next_multiple_of(WIDTH);
        total += level;
        level /= WIDTH;
        if level == 1 {
            return total;
        }
    }
}

/// The tree of one selector.
#[derive(Debug, Clone, Copy)]
pub struct Tree<'a> {
    nodes: &'a [AtomicU64],
    /// Where each level starts, from the lowest up.
    starts: [usize; MAX_LEVELS],
    levels: usize,
}

impl<'a> Tree<'a> {
    /// Over [`nodes`] numbers.
    pub fn new(items: usize, nodes: &'a [AtomicU64]) -> Tree<'a> {
        let (mut starts, mut levels, mut at, mut level) = ([0; MAX_LEVELS], 0, 0, items);
        loop {
            level = level.next_multiple_of(WIDTH);
            starts[levels] = at;
            levels += 1;
            at += level;
            level /= WIDTH;
            if level == 1 {
                return Tree { nodes, starts, levels };
            }
        }
    }

    pub fn clear(&self) {
        self.nodes.iter().for_each(|node| node.store(0, Ordering::Relaxed));
    }

    #[inline]
    fn get(&self, node: usize) -> f64 {
        f64::from_bits(self.nodes[node].load(Ordering::Relaxed))
    }

    /// The sum of sixteen, and where they start.
    #[inline]
    fn sum(&self, start: usize) -> f64 {
        self.nodes[start..start + WIDTH].iter().map(|node| f64::from_bits(node.load(Ordering::Relaxed))).sum()
    }

    /// The weight of an item.
    #[inline]
    pub fn weight(&self, item: usize) -> f64 {
        self.get(item)
    }

    /// The sum of all.
    #[inline]
    pub fn total(&self) -> f64 {
        self.sum(self.starts[self.levels - 1])
    }

    /// Changes the weight of one item.
    #[inline]
    pub fn set(&self, item: usize, weight: f64) {
        self.set_leaf(item, weight);
        self.add_up(item, 0);
    }

    /// Changes the lowest level only: [`add_up_all`](Self::add_up_all) follows.
    #[inline]
    pub fn set_leaf(&self, item: usize, weight: f64) {
        self.nodes[item].store(weight.to_bits(), Ordering::Relaxed);
    }

    /// The sums above a node.
    #[inline]
    fn add_up(&self, mut index: usize, from_level: usize) {
        for level in from_level..self.levels - 1 {
            let parent = index / WIDTH;
            let sum = self.sum(self.starts[level] + parent * WIDTH);
            self.nodes[self.starts[level + 1] + parent].store(sum.to_bits(), Ordering::Relaxed);
            index = parent;
        }
    }

    /// The sums above all of these items, each at least once.
    pub fn add_up_all(&self, items: impl Iterator<Item = usize> + Clone) {
        for level in 0..self.levels - 1 {
            let width = WIDTH.pow(level as u32 + 1);
            let mut last = usize::MAX;
            for item in items.clone() {
                let parent = item / width;
                if parent != last {
                    let sum = self.sum(self.starts[level] + parent * WIDTH);
                    self.nodes[self.starts[level + 1] + parent].store(sum.to_bits(), Ordering::Relaxed);
                    last = parent;
                }
            }
        }
    }

    /// The item at a share of the total, from 0 up to 1. `None` if all weights are 0.
    #[inline]
    pub fn find(&self, share: f64) -> Option<usize> {
        let mut index = 0;
        let mut target = share * self.total();
        for level in (0..self.levels).rev() {
            let start = self.starts[level] + index * WIDTH;
            let (mut child, mut fallback) = (0, None);
            loop {
                let weight = self.get(start + child);
                if weight > 0.0 {
                    fallback = Some(child);
                    if target < weight {
                        break;
                    }
                    target -= weight;
                }
                child += 1;
                if child == WIDTH {
                    // Rounding, or a weight that changed meanwhile.
                    child = fallback?;
                    target = self.get(start + child) * (1.0 - f64::EPSILON);
                    break;
                }
            }
            index = index * WIDTH + child;
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree_of(items: usize) -> Vec<AtomicU64> {
        (0..nodes(items)).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn every_share_finds_the_item_that_a_running_sum_finds() {
        for items in [1, 2, 15, 16, 17, 256, 257, 5000] {
            let nodes = tree_of(items);
            let tree = Tree::new(items, &nodes);
            let weights: Vec<f64> = (0..items).map(|item| ((item * 7919) % 13) as f64).collect();
            weights.iter().enumerate().for_each(|(item, &weight)| tree.set(item, weight));
            let total: f64 = weights.iter().sum();
            assert_eq!(tree.total(), total);
            for step in 0..1000 {
                let share = step as f64 / 1000.0;
                let mut left = share * total;
                let expected = weights.iter().position(|&weight| {
                    let here = left < weight;
                    left -= weight;
                    here
                });
                assert_eq!(tree.find(share), if total > 0.0 { expected } else { None }, "{items} {share}");
            }
        }
    }

    #[test]
    fn sums_of_many_changes_are_those_of_single_ones() {
        let (one, other) = (tree_of(5000), tree_of(5000));
        let (one, other) = (Tree::new(5000, &one), Tree::new(5000, &other));
        let items = [3, 4999, 17, 17, 2048, 4, 4999];
        for &item in &items {
            one.set(item, item as f64 + 0.5);
            other.set_leaf(item, item as f64 + 0.5);
        }
        other.add_up_all(items.iter().copied());
        assert!(
            one.nodes
                .iter()
                .zip(other.nodes)
                .all(|(a, b)| { a.load(Ordering::Relaxed) == b.load(Ordering::Relaxed) })
        );
    }
}
