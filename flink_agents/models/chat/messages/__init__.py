"""Messages of chat models: conversion, the roles that input may have, and histories in memory."""
