//! The simulated watch stream and LISTs, with their faults.

use posse_core::model::ids::Version;
use posse_core::model::input::{Input, List, ListPage, ListSource, PodEvent, Watermark};
use posse_core::model::pod::Pod;

use super::super::check::CheckResult;
use super::super::cluster::coalesce;
use super::super::faults::at;
use super::super::trace::trace;
use super::{Happening, Stream, World};

/// A LIST in pages of `size` pods; 0: in one.
fn pages(mut pods: Vec<Pod>, size: usize) -> Vec<(ListPage, Vec<Pod>)> {
    let mut pages = Vec::new();
    loop {
        let rest = if size == 0 { Vec::new() } else { pods.split_off(size.min(pods.len())) };
        let number = u32::try_from(pages.len()).unwrap();
        pages.push((ListPage { number, is_last: rest.is_empty() }, pods));
        if rest.is_empty() {
            return pages;
        }
        pods = rest;
    }
}

impl World {
    pub fn open_stream(&mut self) {
        self.n_streams += 1;
        let (number, gen_) = (self.n_streams, self.gen_);
        self.stream =
            Some(Stream { number, epoch: 0, cursor: 0, is_open: false, is_pumping: false });
        let source = ListSource::Watch;
        let ms = self.rng.below(50);
        self.after(ms, Happening::ListSent { gen_, stream: Some(number), source });
    }

    pub fn take_list(&mut self, stream: Option<u64>, source: ListSource, watermark: Watermark) {
        if self.is_silent() {
            return self.time_out_list(stream, source);
        }
        let gen_ = self.gen_;
        let ms = 1 + self.rng.below(self.profile.answer_ms);
        if self.rng.chance(self.profile.list_expired) {
            // 410 on a page: the whole LIST is repeated.
            self.after(ms + 100, Happening::ListSent { gen_, stream, source });
            return;
        }
        let (pods, version) = self.cluster.list();
        self.check.lists_taken.insert(version.0, self.now);
        let late = if self.rng.chance(self.profile.list_late) { self.rng.below(8_000) } else { 0 };
        let mut ms = ms + late;
        for (page, pods) in pages(pods, self.profile.page_pods) {
            if page.number > 0 {
                ms += 1 + self.rng.below(self.profile.answer_ms);
            }
            if self.rng.chance(self.profile.page_lost) {
                trace(|| format!("{:>9} page {} of a list is lost", self.now, page.number));
                // The watcher lists again. The pages of a poll that come nevertheless mean nothing.
                if stream.is_some() {
                    return self.after(ms, Happening::ListTimedOut { gen_, stream, source });
                }
                continue;
            }
            let list = Box::new(List { source, page, pods, version: Some(version), watermark });
            self.after(ms, Happening::ListIn { gen_, stream, list });
        }
    }

    pub(super) fn list_in(&mut self, stream: Option<u64>, list: List) -> CheckResult {
        let is_abandoned = |number| self.stream.as_ref().is_none_or(|open| open.number != number);
        if list.page != ListPage::WHOLE && stream.is_some_and(is_abandoned) {
            // The watcher sends its LISTs one after the other.
            return Ok(());
        }
        let (epoch, version) = (list.watermark.epoch, list.version);
        if list.page.is_last {
            let taken = version.and_then(|version| self.check.lists_taken.get(&version.0));
            self.check.last_list = taken.map(|taken| (self.now, *taken));
        }
        if let Some(open) = &mut self.stream
            && stream == Some(open.number)
            && list.page.is_last
        {
            (open.is_open, open.epoch) = (true, epoch);
            open.cursor = version.map_or(0, |version| version.0);
        }
        self.input(Input::List(list))
    }

    pub(super) fn wake_watch(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        if stream.is_open && !stream.is_pumping && self.cluster.version > stream.cursor {
            stream.is_pumping = true;
            let (gen_, stream) = (self.gen_, stream.number);
            let ms = 1 + self.rng.below(self.profile.watch_gap_ms);
            self.after(ms, Happening::Pump { gen_, stream });
        }
    }

    /// A balancer cuts the watch. It is opened again within a second, where it was or with a new LIST.
    pub(super) fn cut_by_balancer(&mut self) {
        self.after(self.profile.cut_each_ms, Happening::Cut);
        let Some(stream) = self.stream.as_mut().filter(|stream| stream.is_open) else { return };
        let number = stream.number;
        stream.is_open = false;
        if self.rng.chance(20) {
            return self.open_stream();
        }
        let (gen_, ms) = (self.gen_, 1 + self.rng.below(1_000));
        self.after(ms, Happening::Reopen { gen_, stream: number });
    }

    pub(super) fn reopen(&mut self, number: u64) {
        if let Some(stream) = self.stream.as_mut().filter(|stream| stream.number == number) {
            (stream.is_open, stream.is_pumping) = (true, false);
        }
    }

    pub(super) fn pump(&mut self, number: u64) -> CheckResult {
        let again = self.rng.chance(self.profile.watch_again);
        let (cut, n) = (self.rng.chance(self.profile.watch_cut), 1 + at(&mut self.rng, 20));
        let Some(stream) = self.stream.as_mut().filter(|s| s.number == number && s.is_open) else {
            return Ok(());
        };
        stream.is_pumping = false;
        if cut {
            trace(|| format!("{:>9} the watch is cut", self.now));
            if self.rng.chance(50) {
                self.open_stream();
            }
            return Ok(());
        }
        let from = if again { stream.cursor.saturating_sub(n as u64) } else { stream.cursor };
        let Some((told, upto)) = self.cluster.watch(from, n) else {
            trace(|| format!("{:>9} the watch gets 410", self.now));
            if !again {
                self.open_stream();
            }
            return Ok(());
        };
        let epoch = stream.epoch;
        stream.cursor = stream.cursor.max(upto);
        let mut events: Vec<PodEvent> = told.into_iter().map(|(_, event)| event).collect();
        if self.rng.chance(self.profile.coalesce) {
            coalesce(&mut events);
        }
        if events.is_empty() && self.rng.chance(30) {
            events.push(PodEvent::Bookmark(Version(upto)));
        }
        if events.is_empty() { Ok(()) } else { self.input(Input::Watch { epoch, events }) }
    }
}
