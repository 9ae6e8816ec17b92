package main

import (
	"context"

	"github.com/embedcni/cni"
)

// oneLiner is a program that was written for go-cni, after the change of its
// import line: the calls and the options of goCNI, and nothing of this module's.
type oneLiner struct {
	spec     spec
	runtimes perNetwork[*cni.Runtime]
}

func (l *oneLiner) open(n int) (*cni.Runtime, error) {
	rt, err := cni.New(cni.WithPluginDir([]string{l.spec.Plugins}), cni.WithInterfacePrefix("eth"))
	if err != nil {
		return nil, err
	}
	if l.spec.Work == workLoopback {
		return rt, rt.Load(cni.WithLoNetwork)
	}
	conf, err := conflist(l.spec.Work, l.spec.Contender.Backend, n, l.spec.dataDir())
	if err != nil {
		return nil, err
	}
	return rt, rt.Load(cni.WithConfListBytes(conf))
}

func (l *oneLiner) add(ctx context.Context, c container) error {
	rt, err := l.runtimes.get(c.Network, l.open)
	if err != nil {
		return err
	}
	_, err = rt.Setup(ctx, c.ID, c.Path, onePort(l.spec.Work, c)...)
	return err
}

func (l *oneLiner) check(ctx context.Context, c container) error {
	rt, err := l.runtimes.get(c.Network, l.open)
	if err != nil {
		return err
	}
	return rt.Check(ctx, c.ID, c.Path, onePort(l.spec.Work, c)...)
}

func (l *oneLiner) del(ctx context.Context, c container) error {
	rt, err := l.runtimes.get(c.Network, l.open)
	if err != nil {
		return err
	}
	return rt.Remove(ctx, c.ID, c.Path, onePort(l.spec.Work, c)...)
}

func (*oneLiner) close() error { return nil }
