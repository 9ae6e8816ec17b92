package engine

// Reap looks for abandoned containers now, rather than in the background.
func (eng *Engine) Reap() error {
	host, err := eng.openHost()
	if err != nil {
		return err
	}
	return Join(eng.abandoned.Look(reaper{eng}.runtime(), host), host.Close())
}
