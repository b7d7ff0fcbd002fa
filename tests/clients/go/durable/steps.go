package durable

// settle takes on the steps that live code has called.
func (c *code) settle() {
	for len(c.fresh) > 0 && !c.isOver() {
		o := c.fresh[0]
		c.fresh = c.fresh[1:]
		switch {
		case c.pending[o.path] != o:
		case o.wasBegun:
			c.give(o, c.record(stepFailed, o.path, o.name, encoded(ErrInterrupted), c.nowMs))
		default:
			if o.step.AtMostOnce {
				c.record(stepBegun, o.path, o.name, nil, c.nowMs)
				o.after = c.made
			}
			c.steps = append(c.steps, o)
		}
	}
}

// takeReady returns the steps that may begin now; they are under way then.
func (c *code) takeReady(nowMs uint64) []*operation {
	var found, left []*operation
	for _, o := range c.steps {
		switch {
		case c.pending[o.path] != o:
		case o.retryAtMs > nowMs || o.after > c.acknowledged && !o.step.ReadsOnly:
			left = append(left, o)
		default:
			if path := o.retryPath(); c.retries[path] != nil {
				delete(c.retries, path)
				if o.atServer {
					c.timers[path] = 0
				}
			}
			o.underWay, o.retryAtMs, o.atServer = true, 0, false
			found = append(found, o)
		}
	}
	c.steps = left
	return found
}

// retryPath is that of the timer before the next attempt.
func (o *operation) retryPath() Path { return Below(o.path, uint64(o.attempt)) }

// again waits for the attempt behind that of a number.
func (c *code) again(o *operation, number int, dueMs uint64, recorded bool) {
	o.attempt, o.retryAtMs, o.underWay = number+1, dueMs, false
	if recorded {
		c.retries[o.retryPath()] = o
		c.withdrawn[o.retryPath()] = true
	}
}

// ended takes what an attempt has given.
func (c *code) ended(o *operation, attempt int, payload []byte, err error, nowMs uint64) {
	if c.isOver() || c.pending[o.path] != o || !o.underWay || o.attempt != attempt {
		return
	}
	switch {
	case err == nil:
		c.give(o, c.record(stepDone, o.path, o.name, payload, nowMs))
	case attempt < o.step.Attempts:
		delayMs := uint64(o.step.Delay.Milliseconds())
		dueMs := max(c.nowMs, nowMs) + delayMs
		if delayMs > 1000 {
			said := encoded([]any{attempt, dueMs, asFailure(err)})
			c.record(attemptFailed, o.path, o.name, said, nowMs)
		}
		c.again(o, attempt, dueMs, delayMs > 1000)
		c.steps = append(c.steps, o)
	default:
		c.give(o, c.record(stepFailed, o.path, o.name, encoded(asFailure(err)), nowMs))
	}
	c.settle()
}

// tick ends the timers that are due, and that the partition does not have.
func (c *code) tick(nowMs uint64) {
	for !c.isOver() {
		var first *operation
		for _, o := range c.pending {
			if o.kind == "timer" && !o.atServer && (first == nil || o.dueMs < first.dueMs) {
				first = o
			}
		}
		if first == nil || first.dueMs > nowMs {
			return
		}
		c.give(first, c.record(timerDone, first.path, "", nil, nowMs))
		c.settle()
	}
}

// nextDue is when `tick` or `takeReady` has something to do; 0: never.
func (c *code) nextDue() uint64 {
	var due uint64
	for _, o := range c.pending {
		at := o.retryAtMs
		if o.kind == "timer" && !o.atServer {
			at = o.dueMs
		}
		if at > 0 && (due == 0 || at < due) {
			due = at
		}
	}
	return due
}

// isIdle says whether only arrivals and timers can continue the code.
func (c *code) isIdle() bool {
	for _, o := range c.pending {
		if o.kind == "spawn" || o.kind == "step" && c.retries[o.retryPath()] != o {
			return false
		}
	}
	return !c.isOver()
}
