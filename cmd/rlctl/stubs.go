package main

import "github.com/spf13/cobra"

func tryCommand() *cobra.Command    { return &cobra.Command{Use: "try"} }
func evalCommand() *cobra.Command   { return &cobra.Command{Use: "eval"} }
func doctorCommand() *cobra.Command { return &cobra.Command{Use: "doctor"} }
