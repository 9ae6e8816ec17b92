package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/kernel/joined"
)

// showView is a container in JSON.
type showView struct {
	ContainerID string           `json:"containerID"`
	Attachments []attachmentView `json:"attachments"`
	Interfaces  []interfaceView  `json:"interfaces"`
	Routes      []routeView      `json:"routes"`
	DNS         []string         `json:"dns"` // name servers
	Holds       []holdView       `json:"holds"`
}

// interfaceView is an interface that a plugin has reported, in the container or on the host.
type interfaceView struct {
	Network   string   `json:"network"`
	Name      string   `json:"name"`
	Sandbox   string   `json:"sandbox,omitempty"` // empty: on the host
	MAC       string   `json:"mac,omitempty"`
	MTU       int      `json:"mtu,omitempty"`
	Addresses []string `json:"addresses"`
	Gateways  []string `json:"gateways"`
}

type routeView struct {
	Dst string `json:"dst"`
	GW  string `json:"gw,omitempty"`
}

// holdView is what keeps guards and repair from a container.
type holdView struct {
	ContainerID string    `json:"containerID,omitempty"` // empty: each on the network
	Network     string    `json:"network,omitempty"`     // empty: each of the container's
	Owner       string    `json:"owner"`
	Reason      string    `json:"reason"`
	Since       time.Time `json:"since"`
}

func newShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		GroupID: groupLook,
		Short:   "Shows all that is on record of a container, whoever attached it.",
		Long: `Show prints a container's record: its attachments with their parameters, the interfaces,
addresses and routes that the plugins have reported, errors of earlier removals, and what an
administrator holds. It asks no plugin: health says whether that is still true.`,
		Example: `  embedcni show web-7`,
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.completeIDs(true),
		RunE: func(_ *cobra.Command, args []string) error { return a.show(args[0]) },
	}
}

func (a *app) show(id string) error {
	rt, err := a.open()
	if err != nil {
		return err
	}
	all, err := rt.Attachments(id)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return notOnRecord(id)
	}
	v := showView{ContainerID: id, Attachments: []attachmentView{}, Interfaces: []interfaceView{}, Routes: []routeView{}, DNS: []string{}, Holds: []holdView{}}
	for _, at := range all {
		v.Attachments = append(v.Attachments, viewAttachment(at))
	}
	if result, err := rt.Lookup(id); err == nil {
		v.addResult(result)
	} else if !errors.Is(err, cni.ErrNotAttached) && all[0].State != cni.Unknown {
		return err
	}
	holds, err := guard.Holds(rt)
	for _, h := range holds {
		if h.ContainerID == id || h.ContainerID == "" && slices.ContainsFunc(all, func(at cni.Attachment) bool { return at.Network == h.Network }) {
			v.Holds = append(v.Holds, holdView{h.ContainerID, h.Network, h.Owner, h.Reason, h.Since})
		}
	}
	return joined.Errors(a.print(v, func() string { return a.showText(v) }), err)
}

// addResult adds what the plugins have reported.
func (v *showView) addResult(result *cni.Result) {
	for _, n := range result.Networks {
		for _, i := range n.Interfaces {
			one := interfaceView{Network: n.Name, Name: i.Name, Sandbox: i.Sandbox, MAC: i.Mac, MTU: i.MTU, Addresses: []string{}, Gateways: []string{}}
			for _, address := range i.Addresses {
				one.Addresses = append(one.Addresses, address.Prefix.String())
				if address.Gateway.IsValid() {
					one.Gateways = append(one.Gateways, address.Gateway.String())
				}
			}
			v.Interfaces = append(v.Interfaces, one)
		}
		for _, r := range n.Routes {
			one := routeView{Dst: r.Dst.String()}
			if r.GW != nil {
				one.GW = r.GW.String()
			}
			v.Routes = append(v.Routes, one)
		}
		v.DNS = append(v.DNS, n.DNS.Nameservers...)
	}
}

func (a *app) showText(v showView) string {
	colors := a.colors(a.Out)
	var b strings.Builder
	for _, at := range v.Attachments {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		for _, field := range a.fields(at) {
			if field.text != "" {
				text := field.text
				if colors {
					text = paint(field.color, text)
				}
				fmt.Fprintf(&b, "%-12s%s\n", field.name, text)
			}
		}
	}
	if len(v.Interfaces) > 0 {
		t := table{header: []string{"INTERFACE", "SIDE", "MAC", "MTU", "ADDRESSES", "GATEWAYS"}}
		for _, i := range v.Interfaces {
			side, mtu := "host", ""
			if i.Sandbox != "" {
				side = "container"
			}
			if i.MTU > 0 {
				mtu = fmt.Sprint(i.MTU)
			}
			t.add(row(i.Name, side, i.MAC, mtu, strings.Join(i.Addresses, ","), strings.Join(i.Gateways, ","))...)
		}
		b.WriteString("\n" + t.format(colors))
	}
	if len(v.Routes) > 0 {
		t := table{header: []string{"ROUTE", "GATEWAY"}}
		for _, r := range v.Routes {
			t.add(row(r.Dst, r.GW)...)
		}
		b.WriteString("\n" + t.format(colors))
	}
	for _, h := range v.Holds {
		fmt.Fprintf(&b, "\nHeld by %s for %s: %s\n", h.Owner, a.age(h.Since), h.Reason)
	}
	return b.String()
}

// field is a line of a record.
type field struct {
	name, text string
	color      color
}

func (a *app) fields(at attachmentView) []field {
	all := []field{
		{name: "Container", text: at.ContainerID},
		{name: "Owner", text: at.Owner},
		{name: "Network", text: at.Network},
		{name: "Interface", text: at.IfName},
		{name: "Namespace", text: at.NetNS},
		{"State", at.State, stateColor(at.State)},
		{name: "Addresses", text: strings.Join(at.Addresses, ", ")},
		{name: "Ports", text: joinPorts(at.Ports)},
		{name: "Plugins", text: pairs(at.Plugins)},
		{name: "Arguments", text: pairs(at.Args)},
		{name: "Metadata", text: pairs(at.Metadata)},
	}
	if !at.Since.IsZero() {
		all = append(all, field{name: "Since", text: fmt.Sprintf("%s (%s)", at.Since.UTC().Format(time.RFC3339), a.age(at.Since))})
	}
	if at.Failures > 0 {
		all = append(all, field{"Failures", fmt.Sprintf("%d to detach it, the last %s ago", at.Failures, a.age(at.LastTry)), red})
	}
	return append(all, field{"Error", at.LastError, red})
}

// pairs is a map as text.
func pairs(m map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+"="+m[key])
	}
	return strings.Join(all, ", ")
}
