"""The whole node under virtual time: service, links and placement over the simulated raft
package.
"""
