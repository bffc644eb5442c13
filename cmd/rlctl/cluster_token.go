package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/rlfleet/rlfleet/coordinator/auth"
	"github.com/rlfleet/rlfleet/coordinator/client"
	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
	pb "github.com/rlfleet/rlfleet/proto/rlfleet/v1"
)

const maxNote = 200

// tokenRoles are the roles that a token can have; nodes have certificates.
var tokenRoles = []auth.Role{auth.Admin, auth.Operator, auth.Viewer, auth.Worker}

func tokenCommand() *cobra.Command {
	c := &cobra.Command{Use: "token", Short: "Let people and programs in, and keep them out."}
	c.AddCommand(tokenCreate(), tokenList(), tokenRevoke())
	return c
}

func tokenCreate() *cobra.Command {
	var to reachFlags
	var role, note string
	var ttl time.Duration
	c := &cobra.Command{
		Use: "create --role ROLE", Short: "Make a token and print it, this once.",
		Long: `Makes a token and prints it. The coordinator keeps a sum of it only, so that it cannot be shown again.
Roles: viewer sees everything; worker does the work of a run; operator starts and controls runs and saves
snapshots; admin may do everything. Its time is the coordinator's, which stands still while no node runs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(tokenRoles, auth.Role(role)) {
				return usagef("--role %q is not known: use admin, operator, viewer or worker", role)
			}
			if ttl < 0 {
				return usagef("--ttl %s is in the past: give how long the token is valid, or 0 for ever", ttl)
			}
			if len(note) > maxNote || strings.ContainsFunc(note, unicode.IsControl) {
				return usagef("--note is one line of up to %d bytes", maxNote)
			}
			cl, err := to.client(cmd.Context())
			if err != nil {
				return err
			}
			text, err := createToken(cmd.Context(), cl, role, note, ttl)
			if err := errors.Join(err, cl.Close()); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), text)
			fmt.Fprintln(cmd.ErrOrStderr(), "Keep it: it is not shown again. Give it as "+envToken+" or with --token.")
			return nil
		},
	}
	to.add(c)
	c.Flags().StringVar(&role, "role", "", "admin, operator, viewer or worker")
	c.Flags().StringVar(&note, "note", "", "whose it is, or what for")
	c.Flags().DurationVar(&ttl, "ttl", 30*day, "how long it is valid; 0 is for ever")
	return c
}

func createToken(ctx context.Context, c *client.Client, role, note string, ttl time.Duration) (string, error) {
	id, secret, sum := auth.GenerateToken()
	t := &raftlog.Token{Id: id, Sum: sum[:], Role: role, Note: note}
	if ttl > 0 {
		_, now, err := readTokens(ctx, c)
		if err != nil {
			return "", err
		}
		t.ExpiresNs = now + int64(ttl)
	}
	if _, err := c.Propose(ctx, &raftlog.Op{Op: &raftlog.Op_SetToken{SetToken: &raftlog.SetToken{Token: t}}}); err != nil {
		return "", err
	}
	return auth.TokenText(id, secret), nil
}

// readTokens returns the tokens and the coordinator's time, which tokens end by.
func readTokens(ctx context.Context, c *client.Client) (all []*raftlog.Token, now int64, err error) {
	v, err := c.View(ctx, "", pb.Kind_KIND_TOKEN) // by the leader, which is then asked for its time
	if err != nil {
		return nil, 0, err
	}
	s, err := c.Status(ctx)
	if err != nil {
		return nil, 0, err
	}
	for _, r := range v.Records {
		if t := r.GetToken(); t != nil {
			all = append(all, t)
		}
	}
	return all, s.NowNs, nil
}

// tokenRow is the stable form of a token in -o json.
type tokenRow struct {
	ID      string `json:"id"`
	Role    string `json:"role"`
	Note    string `json:"note,omitempty"`
	Created string `json:"created"`
	Expires string `json:"expires,omitempty"`
	Expired bool   `json:"expired,omitempty"`
}

func tokenRows(all []*raftlog.Token, now int64) []tokenRow {
	rows := []tokenRow{}
	for _, t := range all {
		// The coordinator's time may be behind the wall clock: what counts is how far away a moment is.
		at := func(ns int64) string {
			return time.Now().Add(time.Duration(ns - now)).Round(time.Second).UTC().Format(time.RFC3339)
		}
		r := tokenRow{ID: t.Id, Role: t.Role, Note: t.Note, Created: at(t.CreatedNs)}
		if t.ExpiresNs != 0 {
			r.Expires, r.Expired = at(t.ExpiresNs), t.ExpiresNs <= now
		}
		rows = append(rows, r)
	}
	return rows
}

func tokenList() *cobra.Command {
	var to reachFlags
	var output string
	c := &cobra.Command{
		Use: "list", Short: "List tokens, without their secrets.", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return usagef("-o %s is not known: use table or json", output)
			}
			cl, err := to.client(cmd.Context())
			if err != nil {
				return err
			}
			all, now, err := readTokens(cmd.Context(), cl)
			if err := errors.Join(err, cl.Close()); err != nil {
				return err
			}
			rows := tokenRows(all, now)
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), rows)
			}
			lines := [][]any{{"TOKEN", "ROLE", "CREATED", "EXPIRES", "NOTE"}}
			for _, r := range rows {
				expires := or(r.Expires, "never")
				if r.Expired {
					expires = "expired"
				}
				lines = append(lines, []any{r.ID, r.Role, r.Created, expires, r.Note})
			}
			return table(cmd.OutOrStdout(), lines...)
		},
	}
	to.add(c)
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

func tokenRevoke() *cobra.Command {
	var to reachFlags
	c := &cobra.Command{
		Use: "revoke TOKEN…", Short: "End tokens, by their ids, at once.", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := to.client(cmd.Context())
			if err != nil {
				return err
			}
			var errs []error
			for _, id := range args {
				if rest, whole := strings.CutPrefix(id, "rlf_"); whole { // the id is enough, but the token was at hand
					id, _, _ = strings.Cut(rest, "_")
				}
				_, err := cl.Propose(cmd.Context(), &raftlog.Op{Op: &raftlog.Op_RemoveToken{RemoveToken: &raftlog.RemoveToken{Id: id}}})
				if err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "%s: revoked\n", id)
				}
				errs = append(errs, err)
			}
			return errors.Join(append(errs, cl.Close())...)
		},
	}
	to.add(c)
	return c
}
