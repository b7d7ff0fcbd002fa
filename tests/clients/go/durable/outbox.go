package durable

import (
	"slices"

	pb "querator.test/client/querator/v1"
)

// record makes a record of this worker, that the code is about to be given.
func (c *code) record(kind pb.RecordKind, path Path, name string, payload []byte, nowMs uint64) *pb.JournalRecord {
	c.nowMs = max(c.nowMs, nowMs)
	r := &pb.JournalRecord{Kind: kind, Path: []byte(path), Name: name, Payload: payload, After: c.seen, AtMs: c.nowMs}
	c.records = append(c.records, r)
	c.made++
	return r
}

// park says what wakes the code, and gives its timers to the partition. nil: nothing can wake it.
func (c *code) park() *pb.Park {
	park := &pb.Park{}
	for path, o := range c.pending {
		switch o.kind {
		case "timer":
			if !o.atServer {
				o.atServer, c.timers[path] = true, o.dueMs
			}
			park.Paths = append(park.Paths, []byte(path))
		case "receive":
			if !slices.Contains(park.Names, o.name) {
				park.Names = append(park.Names, o.name)
			}
		}
	}
	for path, o := range c.retries {
		if !o.atServer {
			o.atServer, c.timers[path] = true, o.retryAtMs
		}
		park.Paths = append(park.Paths, []byte(path))
	}
	for path, o := range c.promises {
		if o.awaited > 0 && !o.result.done {
			park.Paths = append(park.Paths, []byte(path))
		}
	}
	switch waits := len(park.Paths) + len(park.Names); {
	case waits == 0:
		return nil
	case waits > 1000:
		return &pb.Park{Anything: true}
	}
	return park
}

// hasNews says whether there is something for the partition.
func (c *code) hasNews() bool {
	return len(c.records)+len(c.timers)+len(c.starts)+len(c.cancels)+len(c.published) > 0
}

// take moves what is for the partition into a Record; `false` if something is left, or children start.
func (c *code) take(record *pb.RecordProgressRequest) bool {
	size, count := 0, 0
	for count < min(len(c.records), 256) && (count == 0 || size < 2<<20) {
		size += len(c.records[count].Payload)
		count++
	}
	record.Seen = c.seen
	record.Records, c.records = c.records[:count:count], c.records[count:]
	if len(c.records) > 0 {
		return false
	}
	for path, dueMs := range c.timers {
		if len(record.Timers) == 256 {
			return false
		}
		record.Timers = append(record.Timers, &pb.Timer{Path: []byte(path), DueMs: dueMs})
		delete(c.timers, path)
	}
	for len(c.starts) > 0 && len(record.Children) < 256 && size < 2<<20 {
		size += len(c.starts[0].Arguments)
		record.Children, c.starts = append(record.Children, c.starts[0]), c.starts[1:]
	}
	for len(c.cancels) > 0 && len(record.Cancels) < 256 {
		record.Cancels, c.cancels = append(record.Cancels, []byte(c.cancels[0])), c.cancels[1:]
	}
	record.Published, c.published = c.published, nil
	return len(c.starts)+len(c.cancels)+len(record.Children) == 0
}

// putBack takes back what was in a Record that was refused.
func (c *code) putBack(record *pb.RecordProgressRequest) {
	c.records = append(record.Records, c.records...)
	for _, timer := range record.Timers {
		if _, changed := c.timers[string(timer.Path)]; !changed {
			c.timers[string(timer.Path)] = timer.DueMs
		}
	}
	c.starts = append(record.Children, c.starts...)
	for _, path := range record.Cancels {
		c.cancels = append(c.cancels, string(path))
	}
	c.published = append(record.Published, c.published...)
}
