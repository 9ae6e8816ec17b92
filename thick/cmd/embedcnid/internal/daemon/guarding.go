package daemon

import (
	"context"
	"log/slog"
	"reflect"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/thick/cmd/embedcnid/internal/config"
)

// guarding is the guard that runs, or none.
type guarding struct {
	log        *slog.Logger
	conditions *conditions
	report     func(guard.Event)
	config     config.Guard
	stop       func()
}

// guard has a guard run by a configuration. One that runs by another is ended.
func (g *guarding) guard(rt *cni.Runtime, c config.Guard) {
	if reflect.DeepEqual(g.config, c) {
		return
	}
	g.end()
	g.config = c
	if c.Class() == 0 {
		g.conditions.set("guard", met, "off") // it may have ended by an error, which concerns nobody now
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	g.stop = func() {
		cancel()
		<-ended
	}
	go func() {
		defer close(ended)
		g.conditions.set("guard", met, "")
		if err := guard.Run(ctx, rt, guard.Options{Classes: c.Class(), LegacyInterval: c.LegacyInterval, Report: g.report, Logger: g.log}); err != nil {
			g.log.Error("nothing is guarded any more", "error", err)
			g.conditions.set("guard", doubtful, err.Error())
		}
	}()
}

// end ends the guard that runs.
func (g *guarding) end() {
	if g.stop != nil {
		g.stop()
	}
	g.stop, g.config = nil, config.Guard{}
}
