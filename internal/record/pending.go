package record

// Pending is a sync in progress, of a record or of a ledger, or one that begins when it
// is asked for.
type Pending struct {
	begin  func() // begins it, the first time; nil: it is in progress
	done   chan struct{}
	failed *error // set when done
}

func (p *Pending) ask() {
	if p != nil && p.begin != nil {
		p.begin()
	}
}

// Wait returns nil when the data survives a power cut, or the reason why it does
// not. A nil Pending has nothing to wait for.
func (p *Pending) Wait() error {
	if p == nil {
		return nil
	}
	p.ask()
	<-p.done
	return *p.failed
}
