//go:build unix

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"starling/core/comm"
	"starling/core/comm/machine"
)

// meet opens the door for the ranks that come by themselves. When all are there, each gets its rank and its welcome.
func (l *launcher) meet(w *welcomer) (closeDoor func(), err error) {
	r := l.cfg.Rendezvous
	authority, err := comm.DeriveAuthority(r.Secret)
	if err != nil {
		return nil, err
	}
	credentials, err := authority.Issue(0)
	if err != nil {
		return nil, err
	}
	door, err := listenRendezvous(r.Address)
	if err != nil {
		return nil, err
	}
	guests, full := make(chan guest), make(chan struct{})
	l.wg.Go(func() { l.seat(w, guests, full, door) })
	l.wg.Go(func() {
		slots := make(chan struct{}, l.cfg.Ranks+64) // bounds what strangers can tie up
		for {
			c, err := door.Accept()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				time.Sleep(10 * time.Millisecond) // out of files, for a moment
				continue
			}
			slots <- struct{}{}
			l.wg.Go(func() {
				defer func() { <-slots }()
				g, err := l.receive(c, credentials)
				if err != nil {
					_ = c.Close()
					l.post(event{kind: turned, cause: fmt.Sprintf("%v: %v", c.RemoteAddr(), err)})
					return
				}
				l.admit(g, guests, full)
			})
		}
	})
	return func() { _ = door.Close() }, nil
}

// admit passes a guest on to seat, or tells it that there is no place any more.
func (l *launcher) admit(g guest, guests chan<- guest, full <-chan struct{}) {
	why := "cluster: the job has all its processes"
	select {
	case guests <- g:
		return
	case <-full:
	case <-l.over:
		why = "cluster: the job has ended"
	}
	_ = (&control{conn: g.conn}).send(message{Kind: kindFail, Rank: -1, Text: why})
	_ = g.conn.Close()
}

// receive lets a process of the job in. Strangers get no further than the encryption.
func (l *launcher) receive(c net.Conn, credentials *comm.Credentials) (guest, error) {
	_ = c.SetDeadline(time.Now().Add(sendTimeout))
	s, err := comm.Secure(c, credentials, -1)
	if err != nil {
		return guest{}, fmt.Errorf("a stranger, or a process with another secret: %w", err)
	}
	hello, err := readControl(s)
	if err != nil {
		return guest{}, err
	}
	why := ""
	switch {
	case hello.Kind != kindHello:
		why = "it does not say hello"
	case hello.Protocol != controlProtocol:
		why = fmt.Sprintf("it speaks version %d of the control protocol, the launcher version %d; start every rank from the same binary", hello.Protocol, controlProtocol)
	case hello.World != l.cfg.Ranks:
		why = fmt.Sprintf("it was told of %d ranks, and the job has %d: start as many processes as the recipe has ranks (--set ranks=%d, where it is a param of that name)", hello.World, l.cfg.Ranks, hello.World)
	case hello.Rank < 1 || hello.Rank >= l.cfg.Ranks:
		why = fmt.Sprintf("there is no place for a process with number %d beside the launcher's in a job of %d", hello.Rank, l.cfg.Ranks)
	case !comm.Certified(s, hello.Rank):
		why = "its certificate is another number's"
	}
	if why != "" {
		_ = (&control{conn: s}).send(message{Kind: kindFail, Rank: -1, Text: fmt.Sprintf("cluster: the launcher refuses the process with number %d: %s", hello.Rank, why)})
		return guest{}, errors.New(why)
	}
	_ = s.SetDeadline(time.Time{})
	return guest{hello.Rank, hello, s}, nil
}

// seat collects the guests and gives them their ranks. It closes full when it takes no more.
func (l *launcher) seat(w *welcomer, guests <-chan guest, full chan<- struct{}, door net.Listener) {
	here := map[int]guest{}
	defer func() {
		for _, g := range here {
			_ = (&control{conn: g.conn}).send(message{Kind: kindFail, Rank: -1, Text: "cluster: the job has ended before all its processes were there"})
			_ = g.conn.Close()
		}
	}()
	for len(here) < l.cfg.Ranks-1 {
		select {
		case g := <-guests:
			if old, ok := here[g.number]; ok { // it was started again, or two have one number: the last one counts
				_ = (&control{conn: old.conn}).send(message{Kind: kindFail, Rank: -1, Text: fmt.Sprintf("cluster: another process has come with number %d", g.number)})
				_ = old.conn.Close()
			}
			here[g.number] = g
			l.post(event{rank: g.number, kind: knocked})
		case <-l.over:
			return
		}
	}
	_ = door.Close()
	close(full)
	own := cmp.Or(w.cfg.Rendezvous.Host, machine.ID())
	order := inOrder(w.cfg.Mesh, own, here)
	w.oneHost = true
	w.hosts[0] = own
	for i, g := range order {
		w.hosts[i+1] = g.hello.Host
		w.oneHost = w.oneHost && g.hello.Machine == machine.ID()
	}
	first := w.welcome(0)
	if first.Listen == autoListen {
		first.Listen = nearby(order[0].conn) // where the others have come
	}
	l.post(event{rank: 0, kind: came})
	l.send(0, first)
	for i, g := range order {
		delete(here, g.number)
		l.adopt(i+1, g, w.welcome(i+1))
	}
}

// adopt takes a process that came by itself as a rank. Its welcome is queued before anything else can be.
func (l *launcher) adopt(rank int, g guest, welcome message) {
	p := newProcess(g.conn)
	p.out <- welcome
	l.mu.Lock()
	l.workers[rank] = p
	l.mu.Unlock()
	select {
	case <-l.over: // Launch may have hung up on all before this one was among them
		p.hangUp()
	default:
	}
	l.post(event{rank: rank, kind: came, msg: g.hello})
	l.wg.Go(func() { p.write(true) })
	l.wg.Go(func() {
		l.read(rank, p)
		p.hangUp()
		l.post(event{rank: rank, kind: exited, cause: lostGuest})
	})
}

// listenRendezvous listens at all interfaces where the address names none.
func listenRendezvous(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", strings.TrimPrefix(address, "tcp:"))
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("cluster: the rendezvous %s is taken: another job or program listens there; give all processes a free port, with --rendezvous or MASTER_PORT: %w", address, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("cluster: the rendezvous %s is at no address of this machine, and this is process 0; name its own, with --rendezvous or MASTER_ADDR: %w", address, err)
	}
	return nil, fmt.Errorf("cluster: no rendezvous at %s: %w; name another, with --rendezvous or MASTER_ADDR and MASTER_PORT", address, err)
}
