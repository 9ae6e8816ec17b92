package cli

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
)

// attachmentView is an attachment in JSON.
type attachmentView struct {
	ContainerID string            `json:"containerID"`
	Network     string            `json:"network"`
	IfName      string            `json:"ifName"`
	NetNS       string            `json:"netns"`
	Owner       string            `json:"owner"`
	State       string            `json:"state"` // attaching, attached, detaching, failed, unknown
	Since       time.Time         `json:"since,omitzero"`
	Addresses   []string          `json:"addresses"` // with their prefix lengths
	Ports       []portView        `json:"ports"`
	Plugins     map[string]string `json:"plugins,omitempty"` // the kind of each, by type
	Args        map[string]string `json:"args,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Failures    int               `json:"failures,omitempty"` // of detaching it
	LastTry     time.Time         `json:"lastTry,omitzero"`
	LastError   string            `json:"lastError,omitempty"`
}

// portView is a port of the host in JSON.
type portView struct {
	HostIP        string `json:"hostIP,omitempty"`
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"`
}

func viewAttachment(at cni.Attachment) attachmentView {
	v := attachmentView{
		ContainerID: at.ContainerID, Network: at.Network, IfName: at.IfName, NetNS: at.NetNS, Owner: at.Owner,
		State: fmt.Sprint(at.State), Since: at.Since, Addresses: []string{}, Ports: []portView{}, Plugins: at.Plugins,
		Args: at.Args, Metadata: at.Metadata, Failures: at.Failures, LastTry: at.LastTry, LastError: at.LastError,
	}
	for _, address := range at.Addresses {
		v.Addresses = append(v.Addresses, address.Prefix.String())
	}
	for _, p := range at.Ports {
		v.Ports = append(v.Ports, portView{p.HostIP, p.HostPort, p.ContainerPort, cmp.Or(strings.ToLower(p.Protocol), "tcp")})
	}
	return v
}

func (p portView) String() string {
	host := strconv.Itoa(int(p.HostPort))
	if p.HostIP != "" {
		host = p.HostIP + ":" + host
	}
	return fmt.Sprintf("%s->%d/%s", host, p.ContainerPort, p.Protocol)
}

func joinPorts(ports []portView) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

func newListCommand(a *app) *cobra.Command {
	var allOwners bool
	var address string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		GroupID: groupLook,
		Short:   "Lists the containers on record, with their networks, addresses and ports.",
		Long: `List reads the records and prints a line for each interface of a container. It asks no
plugin and enters no namespace: health says whether that is still true. With --address it
lists who has an address, whoever attached it.`,
		Example: `  embedcni list --all-owners
  embedcni list --address 10.1.0.7
  embedcni list --json | jq -r '.[].containerID'`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if address != "" {
				return a.listAddress(address)
			}
			return a.list(allOwners)
		},
	}
	addAllOwners(cmd, &allOwners)
	cmd.Flags().StringVar(&address, "address", "", "list the containers that have this `address`")
	return cmd
}

// addAllOwners gives a command that changes nothing the flag for the records of every owner.
func addAllOwners(cmd *cobra.Command, all *bool) {
	cmd.Flags().BoolVarP(all, "all-owners", "a", false, "show the containers of all programs, not only of --owner's")
}

func (a *app) list(allOwners bool) error {
	rt, err := a.open()
	if err != nil {
		return err
	}
	all, err := rt.Attachments()
	if err != nil {
		return err
	}
	views, others := []attachmentView{}, map[string]int{}
	for _, at := range all {
		if !allOwners && at.Owner != a.flags.owner {
			others[at.Owner]++
			continue
		}
		views = append(views, viewAttachment(at))
	}
	if err := a.print(views, func() string { return a.listTable(views) }); err != nil {
		return err
	}
	a.noteOthers(others)
	if len(all) == 0 {
		a.noteEmpty(rt)
	}
	return nil
}

// listAddress lists the containers that have an address.
func (a *app) listAddress(text string) error {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return usageError("--address: %w", err)
	}
	rt, err := a.open()
	if err != nil {
		return err
	}
	all, err := rt.LookupAddr(address)
	if err != nil {
		return err
	}
	views := []attachmentView{}
	for _, at := range all {
		views = append(views, viewAttachment(at))
	}
	return a.print(views, func() string { return a.listTable(views) })
}

func (a *app) listTable(views []attachmentView) string {
	t := table{header: []string{"CONTAINER", "NETWORK", "INTERFACE", "ADDRESSES", "PORTS", "STATE", "AGE", "OWNER"}}
	for _, v := range views {
		t.add(cell{text: v.ContainerID}, cell{text: v.Network}, cell{text: v.IfName}, cell{text: strings.Join(v.Addresses, ",")},
			cell{text: joinPorts(v.Ports)}, cell{v.State, stateColor(v.State)}, cell{text: a.age(v.Since)}, cell{text: v.Owner})
	}
	text := t.format(a.colors(a.Out))
	for _, v := range views {
		if v.LastError != "" {
			text += fmt.Sprintf("%s: %s\n", dash(v.ContainerID), strings.ReplaceAll(v.LastError, "\n", "; "))
		}
	}
	return text
}

// stateColor is that of an attachment's state.
func stateColor(state string) color {
	switch state {
	case fmt.Sprint(cni.Attached):
		return plain
	case fmt.Sprint(cni.Attaching), fmt.Sprint(cni.Detaching):
		return yellow
	}
	return red
}

// noteEmpty says on stderr that nothing is on record at all, and where: it may be the wrong
// directory.
func (a *app) noteEmpty(rt *cni.Runtime) {
	fmt.Fprintf(a.Err, "Nothing is on record in %s. A program may have its records elsewhere: see --state-dir.\n", rt.GetConfig().RecordDir)
}

// noteOthers says on stderr which containers a list has left out.
func (a *app) noteOthers(others map[string]int) {
	if len(others) == 0 {
		return
	}
	var counts []string
	for _, owner := range slices.Sorted(maps.Keys(others)) {
		if owner == "" {
			counts = append(counts, plural(others[owner], "record")+" without a legible owner")
			continue
		}
		counts = append(counts, plural(others[owner], "attachment")+" of "+owner)
	}
	fmt.Fprintf(a.Err, "Not shown: %s. See --all-owners.\n", strings.Join(counts, ", "))
}

// age is the time since then, in its largest unit.
func (a *app) age(since time.Time) string {
	if since.IsZero() {
		return ""
	}
	d := a.Now().Sub(since)
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	case d >= 2*time.Minute:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
}
