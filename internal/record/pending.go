package record

// Pending is a sync in progress, of a record.
type Pending struct {
	done   chan struct{}
	failed *error // set when done
}

// Wait returns nil when the data survives a power cut, or the reason why it does
// not. A nil Pending has nothing to wait for.
func (p *Pending) Wait() error {
	if p == nil {
		return nil
	}
	<-p.done
	return *p.failed
}
