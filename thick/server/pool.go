package server

import (
	"slices"
	"strings"
)

// pool is a number of things that calls share: slots to run in, places to wait in, bytes.
//
// A kind of calls gets another one only while it has fewer than its share of those that are
// free: these are the dynamic thresholds by which a switch divides its memory among its ports
// (Choudhury and Hahne, IEEE/ACM Transactions on Networking, 1998). With the share 1, one kind
// alone has at most half of all. A part of all is kept for kinds that have none: thresholds do
// not take back what calls have that came first.
type pool struct {
	total, free int64
	used        map[kind]int64
}

// kind is what some calls have in common.
type kind struct {
	name  string
	share int64 // of what is free: with 1 it has at most a half of all, with 3 three quarters
	keeps int64 // one part of so many is kept for kinds that have none; 0: nothing is
}

// The networks of a call leave slots to others, one network to other sets of networks with it,
// and a plugin type to other types.
func flowKind(name string) kind    { return kind{"flow " + name, 1, 4} }
func networkKind(name string) kind { return kind{"network " + name, 3, 4} }
func pluginKind(name string) kind  { return kind{"plugin " + name, 7, 8} }

// classKind is of the places of calls that wait.
func classKind(name string) kind { return kind{"verb " + name, 3, 8} }

func newPool(total int64) pool { return pool{total, total, map[kind]int64{}} }

// fits reports whether a call of these kinds may have n more.
func (p *pool) fits(n int64, kinds ...kind) bool {
	for _, k := range kinds {
		used := p.used[k]
		if used+n > k.share*p.free || used > 0 && k.keeps > 0 && p.free-n < p.total/k.keeps {
			return false
		}
	}
	return n <= p.free
}

func (p *pool) take(n int64, kinds ...kind) {
	p.free -= n
	for _, k := range kinds {
		p.used[k] += n
	}
}

func (p *pool) give(n int64, kinds ...kind) {
	p.free += n
	for _, k := range kinds {
		if p.used[k] -= n; p.used[k] == 0 {
			delete(p.used, k)
		}
	}
}

// kindsOf returns the kinds of a call: first its flow, and then each network and plugin type.
func kindsOf(u Use, queued bool) []kind {
	networks, plugins := distinct(u.Networks), distinct(u.Plugins)
	name := strings.Join(networks, "\x00") + "\x00\x00" + strings.Join(plugins, "\x00")
	if queued {
		name = "queued\x00" + name
	}
	kinds := []kind{flowKind(name)}
	for _, n := range networks {
		kinds = append(kinds, networkKind(n))
	}
	for _, p := range plugins {
		kinds = append(kinds, pluginKind(p))
	}
	return kinds
}

func distinct(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}
