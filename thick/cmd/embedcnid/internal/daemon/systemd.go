package daemon

import (
	"fmt"
	"log/slog"
	"time"

	notify "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// systemd is the service manager, if one has started the daemon (sd_notify(3)).
type systemd struct{ log *slog.Logger }

func (s systemd) send(state string) {
	if _, err := notify.SdNotify(false, state); err != nil {
		s.log.Warn("notify the service manager", "error", err)
	}
}

func (s systemd) ready()    { s.send(notify.SdNotifyReady) }
func (s systemd) stopping() { s.send(notify.SdNotifyStopping) }
func (s systemd) alive()    { s.send(notify.SdNotifyWatchdog) }

// reloading is sent before a reload, and ready after it. The time is by which systemd, for
// Type=notify-reload, knows that the reload began after its signal.
func (s systemd) reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		s.log.Warn("notify the service manager", "error", err)
		return
	}
	s.send(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", notify.SdNotifyReloading, now.Nano()/int64(time.Microsecond)))
}

// watchdog returns a channel that has an element whenever alive is due, none if the unit has
// no WatchdogSec.
func (s systemd) watchdog() (due <-chan time.Time, stop func()) {
	interval, err := notify.SdWatchdogEnabled(false)
	if err != nil {
		s.log.Warn("the service manager's watchdog", "error", err)
	}
	if interval <= 0 {
		return nil, func() {}
	}
	tick := time.NewTicker(interval / 2)
	return tick.C, tick.Stop
}
