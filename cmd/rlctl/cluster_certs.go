package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/coordinator/auth"
)

const day = 24 * time.Hour

// bearer is somebody who gets a certificate.
type bearer struct {
	who   auth.Identity
	hosts []string
}

func certsCommand() *cobra.Command {
	var dir string
	var nodes, clients []string
	var days, caDays int
	var renew bool
	c := &cobra.Command{
		Use:   "certs --dir DIR --nodes NAME=HOST[,HOST…] --clients ROLE/NAME",
		Short: "Make a certificate authority, and certificates for nodes, workers and people.",
		Long: `Makes an authority in DIR (ca.pem, ca-key.pem), or uses the one there, and for each node and client a
directory DIR/NAME with ca.pem, cert.pem and key.pem: what --tls, and a coordinator's configuration, take.
Hosts are the names and addresses that others reach a node by. Keep ca-key.pem away from the nodes.`,
		Example: `  rlctl cluster certs --dir certs --nodes n1=10.0.0.1 --nodes n2=10.0.0.2 --nodes n3=10.0.0.3,n3.example --clients admin/alice
  rlctl cluster certs --dir certs --clients worker/gpu-7
  rlctl cluster certs --dir certs --nodes n1=10.0.0.1 --renew`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := bearers(nodes, clients)
			switch {
			case err != nil:
				return err
			case dir == "":
				return usagef("where to: give --dir DIR")
			case days < 1 || caDays < 1:
				return usagef("--days and --ca-days are 1 or more")
			}
			ca, fresh, err := authority(dir, caDays, len(all) > 0)
			if err != nil {
				return err
			}
			if fresh {
				fmt.Fprintf(cmd.OutOrStdout(), "authority: new, until %s: %s; keep %s safe, who has it can be anyone\n",
					ca.Expires().Format(time.DateOnly), filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem"))
			}
			if err := unissued(dir, all, renew); err != nil {
				return err
			}
			end := time.Now().Add(time.Duration(days) * day)
			if ca.Expires().Before(end) {
				end = ca.Expires()
			}
			for _, b := range all {
				to := filepath.Join(dir, b.who.Name)
				if err := ca.IssueTo(to, b.who, b.hosts, time.Duration(days)*day); err != nil {
					return err
				}
				at := ""
				if len(b.hosts) > 0 {
					at = " at " + strings.Join(b.hosts, ", ")
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s%s: until %s: %s\n", b.who, at, end.Format(time.DateOnly), to)
			}
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "directory of the authority and of what it issues")
	c.Flags().StringArrayVar(&nodes, "nodes", nil, "nodes of the coordinator and their hosts: n1=HOST[,HOST…]; give it several times, or n1=HOST,n2=HOST")
	c.Flags().StringArrayVar(&clients, "clients", nil, "others, as ROLE/NAME[,ROLE/NAME…] with a role of admin, operator, viewer or worker")
	c.Flags().IntVar(&days, "days", 365, "how long certificates are valid")
	c.Flags().IntVar(&caDays, "ca-days", 3650, "how long a new authority is valid")
	c.Flags().BoolVar(&renew, "renew", false, "replace certificates that exist; running processes take them up by themselves")
	return c
}

// authority loads the one in the directory or makes it.
func authority(dir string, days int, work bool) (ca *auth.CA, fresh bool, err error) {
	ca, err = auth.LoadCA(dir)
	switch {
	case err == nil && !work:
		return nil, false, usagef("%s has an authority, and there is nothing to issue: give --nodes or --clients", dir)
	case err == nil:
		return ca, false, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, false, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, false, err
	}
	if ca, err = auth.NewCA("rlfleet "+filepath.Base(dir), time.Duration(days)*day); err != nil {
		return nil, false, err
	}
	return ca, true, ca.Save(dir)
}

// unissued refuses before anything is written.
func unissued(dir string, all []bearer, renew bool) error {
	for _, b := range all {
		files := auth.FilesIn(filepath.Join(dir, b.who.Name))
		for _, path := range []string{files.Cert, files.Key} {
			if _, err := os.Lstat(path); err == nil && !renew {
				return usagef("%s exists: add --renew to replace it, with all hosts that it is to have", path)
			}
		}
	}
	return nil
}

// bearers reads --nodes and --clients.
func bearers(nodes, clients []string) (all []bearer, err error) {
	for _, piece := range pieces(nodes) {
		name, hosts, found := strings.Cut(piece, "=")
		switch {
		case found:
			all = append(all, bearer{who: auth.Identity{Role: auth.Coordinator, Name: name}})
		case len(all) == 0:
			return nil, usagef("--nodes %s: a node is NAME=HOST[,HOST…], for example n1=10.0.0.1", piece)
		default: // one more host of the last node
			hosts = piece
		}
		last := &all[len(all)-1]
		host, err := hostOf(hosts)
		if err != nil {
			return nil, usagef("--nodes %s: %v", piece, err)
		}
		last.hosts = append(last.hosts, host)
	}
	for _, piece := range pieces(clients) {
		who, err := auth.ParseIdentity(piece)
		if err != nil {
			return nil, usagef("--clients: %w", err)
		}
		if who.Role == auth.Coordinator {
			return nil, usagef("--clients %s: nodes of the coordinator go to --nodes, with their hosts", piece)
		}
		all = append(all, bearer{who: who})
	}
	seen := map[string]bool{}
	for _, b := range all {
		if _, err := auth.ParseIdentity(b.who.String()); err != nil {
			return nil, usageError{err}
		}
		if seen[b.who.Name] {
			return nil, usagef("two are called %s, and their files would be in one directory: choose another name", b.who.Name)
		}
		seen[b.who.Name] = true
	}
	return all, nil
}

func pieces(values []string) (out []string) {
	for _, v := range values {
		out = append(out, strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	return out
}

var hostName = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

// hostOf reads a name or an IP address; a port, which certificates do not have, is left out.
func hostOf(text string) (string, error) {
	host := text
	if h, _, err := net.SplitHostPort(text); err == nil {
		host = h
	}
	if net.ParseIP(strings.Trim(host, "[]")) != nil {
		return strings.Trim(host, "[]"), nil
	}
	if !hostName.MatchString(host) {
		return "", fmt.Errorf("%q is neither a host's name nor an IP address", text)
	}
	return host, nil
}
